"""Which modules are loaded again, in which order, and what `sys.path` becomes."""

import importlib
import sys

import pytest

from monarch_nb.meshes.synced import SyncedFolders
from monarch_nb.worker.reloading import imports_of, in_order, reload_changed


@pytest.mark.parametrize(
    "changed, imports, order",
    [
        ({"a"}, {"a": set(), "b": set()}, ["a"]),
        ({"a"}, {"a": set(), "b": {"a"}, "c": {"b"}, "d": set()}, ["a", "b", "c"]),
        ({"a", "c"}, {"a": {"c"}, "c": set()}, ["c", "a"]),
        ({"a"}, {"a": {"b"}, "b": {"a"}}, ["b", "a"]),
        (set(), {"a": {"b"}, "b": set()}, []),
    ],
)
def test_what_is_imported_comes_first(changed, imports, order):
    assert in_order(changed, imports) == order


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    made = tmp_path / "shelf"
    (made / "sub").mkdir(parents=True)
    (made / "__init__.py").write_text("")
    (made / "sub/__init__.py").write_text("from .. import base\n")
    (made / "base.py").write_text("VALUE = 1\n")
    (made / "top.py").write_text(
        "import shelf.base\nfrom shelf import sub\nfrom .base import VALUE\n"
    )
    importlib.import_module("shelf.top")
    yield made
    for name in [each for each in sys.modules if each.partition(".")[0] == "shelf"]:
        del sys.modules[name]


def test_imports_are_read_from_the_source(package):
    modules = {name: module.__file__ for name, module in sys.modules.items() if "shelf" in name}
    assert imports_of("shelf.top", modules) == {"shelf", "shelf.base", "shelf.sub"}
    assert imports_of("shelf.sub", modules) == {"shelf", "shelf.base"}


def test_those_that_import_a_changed_one_follow(package):
    (package / "base.py").write_text("VALUE = 23\n")
    reloaded, failed = reload_changed([str(package / "base.py")], [str(package.parent)])
    assert (reloaded, failed) == (["shelf.base", "shelf.sub", "shelf.top"], [])
    assert sys.modules["shelf.top"].VALUE == 23
    assert reload_changed(["/elsewhere/x.py"], [str(package.parent)]) == ([], [])


def test_the_synced_folder_takes_the_place_of_its_original():
    landing = SyncedFolders("/ws", {"/home/me/a": "/ws/a"}, "/ws/conda")
    path = ["/home/me/a/src", "/usr/lib", "/home/me/ab", "/home/me/a"]
    for _ in range(2):
        path = landing.import_path(path)
    assert path == ["/ws/a", "/ws/a/src", "/usr/lib", "/home/me/ab", "/ws/conda"]
