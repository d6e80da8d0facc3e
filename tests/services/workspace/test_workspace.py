"""What a workspace is made of, before anything is sent; and how files are cut into pieces."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from monarch_nb import Extent, Point, Workspace
from monarch_nb.core.wire.manifest import Entry
from monarch_nb.meshes.synced import SyncedFolders
from monarch_nb.meshes.workspace import ACTIVE_CONDA_ENV, CondaEnvironment
from monarch_nb.services.workspace import sync
from monarch_nb.services.workspace.trees import CHUNK_BYTES, Pieces, scan


def test_folders_land_under_their_names_or_where_told():
    home = Path("/home/me")
    assert Workspace([home / "torch", "/a/titan"]).dirs == {
        home / "torch": "torch",
        Path("/a/titan"): "titan",
    }
    assert Workspace({home / "torch": "github/pytorch"}).dirs == {home / "torch": "github/pytorch"}
    assert Workspace({"/a": ""}).dirs == {Path("/a"): ""}
    assert Workspace("/a/one").dirs == Workspace(Path("/a/one")).dirs == {Path("/a/one"): "one"}
    assert Workspace().dirs == Workspace.null().dirs == {}
    assert (Workspace().env, Workspace.null().env) == (ACTIVE_CONDA_ENV, None)
    assert Workspace(["/a"]) == Workspace({"/a": "a"}) != Workspace({"/a": "b"})
    assert Workspace(["/a"]) != Workspace(["/a"], exclude=["*.ckpt"])
    assert repr(Workspace(["/a"])) == "Workspace({'/a': 'a'})"


@pytest.mark.parametrize(
    "dirs, words",
    [
        ([""], "empty folder name"),
        ({"/a": ".."}, "no path inside"),
        ({"/a": "/b"}, "no path inside"),
        (["/a/src", "/b/src"], "a place of its own"),
        ({"/a": "x", "/b": "x/y"}, "a place of its own"),
        ({"/a": "", "/b": "y"}, "a place of its own"),
    ],
)
def test_places_that_cannot_be(dirs, words):
    with pytest.raises(ValueError, match=words):
        Workspace(dirs)


def test_merge_is_local(tmp_path):
    (tmp_path / "a/deep").mkdir(parents=True)
    (tmp_path / "a/deep/x").write_text("x")
    Workspace({tmp_path / "a": "there"}).merge(tmp_path / "out")
    assert (tmp_path / "out/there/deep/x").read_text() == "x"


def test_a_conda_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("CONDA_PREFIX", "/opt/active")
    assert ACTIVE_CONDA_ENV.conda_prefix == "/opt/active"
    assert CondaEnvironment("/opt/other").conda_prefix == "/opt/other"
    packages = tmp_path / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    (packages / "site-packages").mkdir(parents=True)
    assert CondaEnvironment(str(tmp_path)).packages == packages / "site-packages"


def test_pieces_are_small_and_whole(tmp_path):
    contents = {f"f{size}": os.urandom(size) for size in (0, 1, 700_000, 2_500_000)}
    contents |= {f"small{i}": b"x" * 100 for i in range(1_000)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    pieces = Pieces(tmp_path, scan(tmp_path))
    found = dict.fromkeys(contents, b"")
    for batch in pieces:
        assert sum(len(data) for _, _, data in batch) <= 1 << 20
        for path, offset, data in batch:
            assert offset == len(found[path])
            found[path] += data
    assert found == contents
    assert (pieces.amended, pieces.vanished) == ([], [])
    assert (pieces.files, pieces.bytes) == (len(contents), sum(map(len, contents.values())))


def test_a_file_that_grows_and_one_that_goes(tmp_path):
    (tmp_path / "log").write_text("one")
    (tmp_path / "gone").write_text("x")
    announced = scan(tmp_path)
    (tmp_path / "log").write_text("one two")
    (tmp_path / "gone").unlink()
    pieces = Pieces(tmp_path, announced)
    [[piece]] = list(pieces)
    assert piece == ("log", 0, b"one two")
    assert [(each.path, each.size) for each in pieces.amended] == [("log", 7)]
    assert pieces.vanished == ["gone"]


CHUNKS = 20


class Busy:
    """A receiver that counts how many chunks are on their way."""

    def __init__(self):
        self.on_the_way = self.most = self.sent = 0
        self.full = asyncio.Event()
        self.compare = self.write = self.commit = self

    def call_one(self, place, content, *rest):
        if rest:
            return self.answer({"written": [], "deleted": []})
        if content and isinstance(content[0], Entry):
            return self.answer({each.path: b"" for each in content})
        self.sent += 1
        self.on_the_way += 1
        self.most = max(self.most, self.on_the_way)
        return asyncio.ensure_future(self.arrive())

    async def answer(self, value):
        return value

    async def arrive(self):
        """Not before as many as may be are on their way, and time for one too many."""
        if self.on_the_way >= sync.WINDOW or self.sent == CHUNKS:
            self.full.set()
        await self.full.wait()
        await asyncio.sleep(0.02)
        self.on_the_way -= 1
        if self.sent < CHUNKS:
            self.full.clear()


def test_few_chunks_are_on_their_way_at_a_time(tmp_path):
    """What others send to that host is never behind more than these."""
    (tmp_path / "large").write_bytes(bytes(CHUNKS * CHUNK_BYTES))

    async def send():
        busy = Busy()
        sender = sync._Sender(None, 0, Point(0, Extent([], [])), None)
        await sender.send(sync._Source(tmp_path, "x", scan(tmp_path)), busy)
        return busy.most

    assert asyncio.run(send()) == sync.WINDOW
    assert sync.WINDOW * CHUNK_BYTES <= 4 << 20


def test_where_local_paths_are_on_the_host():
    landing = SyncedFolders("/root", {"/home/me/a": "/root/a"}, "/root/conda")
    assert landing.there("/home/me/a/b") == "/root/a/b"
    assert landing.there("/home/me/ab") is None
    assert (landing.cwd("/home/me/a/b"), landing.cwd("/tmp")) == ("/root/a/b", "/root/a")
    assert SyncedFolders("/root").cwd("/tmp") == "/root"
    path = landing.import_path(["/home/me/a/src", "/usr/lib"])
    assert path == ["/root/a", "/root/a/src", "/usr/lib", "/root/conda"]
