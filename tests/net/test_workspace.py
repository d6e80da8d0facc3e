"""`sync_workspace`: folders of this host on others, sent once, put into place as a whole."""

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest

from monarch_nb import Actor, MeshError, Workspace, attach_to_workers, endpoint, this_host
from monarch_nb.meshes.workspace import CondaEnvironment
from monarch_nb.services.workspace import sync as syncing
from monarch_nb.services.workspace.trees import scan
from tests.net.conftest import Workers
from tests.support import eventually


class Explorer(Actor):
    """Looks around where it runs."""

    @endpoint
    def value(self, expression):
        import importlib

        return eval(expression, {"os": os, "sys": sys, "load": importlib.import_module})


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The workspace folders of two hosts."""
    return [tmp_path_factory.mktemp("host") / "workspace" for _ in range(2)]


@pytest.fixture(scope="module")
def hosts(mesh_runtime, places, tmp_path_factory):
    workers = Workers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_HOME", str(tmp_path_factory.mktemp("home") / "keys"))
        addresses = [workers(1, WORKSPACE_DIR=str(place))[0][0] for place in places]
        found = attach_to_workers(workers=addresses)
        found.initialized.get(30)
        yield found
        workers.end()


@pytest.fixture
def project(request, tmp_path):
    """A folder of a name of its own: tests share the hosts."""
    name = request.node.name.partition("[")[0].removeprefix("test_")
    folder = tmp_path / name
    write(folder / "pkg/__init__.py", "")
    write(folder / "pkg/values.py", "VALUE = 1\n")
    write(folder / "data/deep/table.csv", "1,2\n" * 1000)
    return folder


def write(path, text, *, mtime_ns=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mtime_ns is not None:
        os.utime(path, ns=(mtime_ns, mtime_ns))


def sync(hosts, workspace, **how):
    return asyncio.run(hosts.sync_workspace(workspace, **how))


def tree(top):
    """Everything below a folder: kind, mode and content."""
    found = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = "link", str(path.readlink())
        elif path.is_dir():
            found[name] = "folder", oct(path.stat().st_mode & 0o777)
        else:
            status = path.stat()
            found[name] = path.read_bytes(), oct(status.st_mode & 0o777), status.st_mtime_ns
    return found


def test_everything_arrives_as_it_is(hosts, places, project):
    (project / "empty").mkdir(mode=0o750)
    (project / "data/none").touch()
    write(project / "run.sh", "#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "data/large").write_bytes(os.urandom(3_000_001))
    (project / "latest").symlink_to("data/deep")
    (project / "pkg/up").symlink_to("../data/deep/table.csv")
    expected = tree(project)
    (project / "absolute").symlink_to(project / "data")
    expected["absolute"] = "link", "data"
    for left_out in (".git/HEAD", "pkg/__pycache__/x.pyc", ".venv/bin/x", "a.pyc", "big.ckpt"):
        write(project / left_out, "left out")
    report = sync(hosts, Workspace([project], exclude=["*.ckpt"]))
    for place in places:
        assert tree(place / project.name) == expected
    files = [each for each in expected.values() if len(each) == 3]
    assert report.files_sent == 2 * len(files)
    assert report.bytes_sent == 2 * sum(len(content) for content, _, _ in files)
    assert [each.folder for each in report.hosts] == [str(place) for place in places]
    assert str(places[1]) in str(report)


def test_only_what_differs_is_sent(hosts, places, project):
    sync(hosts, project)
    again = sync(hosts, project)
    assert (again.files_sent, again.bytes_sent, again.deleted) == (0, 0, 0)
    write(project / "data/deep/table.csv", "1,2\n" * 1000, mtime_ns=10**18)  # touched
    (project / "pkg/__init__.py").chmod(0o600)
    assert sync(hosts, project).files_sent == 0
    assert tree(places[0] / project.name) == tree(project)
    write(project / "pkg/values.py", "VALUE = 2\n")  # as long as it was
    write(project / "pkg/new.py", "NEW = 1\n")
    report = sync(hosts, project)
    assert (report.files_sent, report.bytes_sent) == (4, 2 * (10 + 8))
    for place in places:
        assert tree(place / project.name) == tree(project)


def test_what_is_gone_is_deleted_and_nothing_else(hosts, places, project):
    sync(hosts, project)
    for place in places:
        write(place / project.name / "results.txt", "of a rank")
        write(place / project.name / "data/deep/results.txt", "of a rank")
        write(place / project.name / "pkg/__pycache__/values.cpython-311.pyc", "old")
    (project / "data/deep/table.csv").unlink()
    (project / "data/deep").rmdir()
    for each in ("__init__.py", "values.py"):
        (project / "pkg" / each).unlink()
    (project / "pkg").rmdir()
    assert sync(hosts, project).deleted == 6
    for place in places:
        there = place / project.name
        assert sorted(str(each.relative_to(there)) for each in there.rglob("*")) == [
            "data",
            "data/deep",
            "data/deep/results.txt",
            "results.txt",
        ]


def test_one_kind_of_file_takes_the_place_of_another(hosts, places, project):
    write(project / "a", "a file")
    (project / "c").symlink_to("data")
    sync(hosts, project)
    (project / "a").unlink()
    write(project / "a/b", "a folder")
    (project / "data/deep/table.csv").unlink()
    (project / "data/deep").rmdir()
    write(project / "data/deep", "a file now")
    (project / "c").unlink()
    write(project / "c/d", "a folder that was a link")
    sync(hosts, project)
    for place in places:
        assert tree(place / project.name) == tree(project)


def test_a_file_that_changes_meanwhile(hosts, places, project, monkeypatch):
    log, gone = project / "log.txt", project / "gone.txt"
    write(log, "one\n")
    write(gone, "soon")

    def scan_and_go_on(top, exclude=()):
        found = scan(top, exclude)
        with log.open("a") as file:
            file.write("two\n" * 400_000)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(syncing, "scan", scan_and_go_on)
    sync(hosts, project)
    monkeypatch.undo()
    for place in places:
        assert tree(place / project.name) == tree(project)
    assert sync(hosts, project).files_sent == 0


def test_a_link_that_leaves_is_refused_here(hosts, places, project):
    for target in ("../..", "/etc/passwd", "data/../../x"):
        (project / "link").symlink_to(target)
        with pytest.raises(ValueError, match=r"'link' is a symbolic link .*leaves the workspace.*"):
            sync(hosts, project)
        assert not (places[0] / project.name).exists()
        sync(hosts, Workspace({project: f"{project.name}-without"}, exclude=["link"]))
        (project / "link").unlink()


def test_a_link_on_the_other_side_leads_nowhere(hosts, places, project, tmp_path):
    outside = tmp_path / "outside"
    write(outside / "deep/table.csv", "precious")
    for place in places:
        (place / project.name).mkdir(parents=True)
        (place / project.name / "data").symlink_to(outside)
    sync(hosts, project)
    assert (outside / "deep/table.csv").read_text() == "precious"
    assert tree(places[0] / project.name) == tree(project)


def test_a_failure_names_host_and_file_and_leaves_the_old(hosts, places, project):
    sync(hosts, project)
    before = tree(places[1] / project.name)
    write(places[1] / project.name / "zoo/rank.txt", "of a rank")
    write(project / "pkg/values.py", "VALUE = 3\n")
    write(project / "zoo", "a file")
    with pytest.raises(MeshError, match=r"the host hosts=1 \(.*\): zoo: .*zoo/rank.txt"):
        sync(hosts, project)
    assert tree(places[0] / project.name) == tree(project)
    now = tree(places[1] / project.name)
    assert {name: now[name] for name in before} == before
    (places[1] / project.name / "zoo/rank.txt").unlink()
    sync(hosts, project)
    assert tree(places[1] / project.name) == tree(project)
    assert not list((places[1] / ".monarch-sync").glob("staging-*"))


def test_ranks_find_it(hosts, places, project, monkeypatch):
    early = hosts.spawn_procs({"gpus": 1}).spawn("early", Explorer)
    early.value.call("1").get(20)
    monkeypatch.chdir(project / "data")
    monkeypatch.syspath_prepend(str(project / "data"))
    sync(hosts, project)
    late = hosts.spawn_procs().spawn("late", Explorer)
    there = [place / project.name for place in places]
    assert late.value.call("os.getcwd()").get(20).values() == [str(each / "data") for each in there]
    assert late.value.call("os.environ['WORKSPACE_DIR']").get(20).values() == list(map(str, places))
    for explorers in (early, late):
        assert explorers.value.call("load('pkg.values').VALUE").get(20).values() == [1, 1]
        files = explorers.value.call("load('pkg').__file__").get(20).values()
        assert files == [str(each / "pkg/__init__.py") for each in there]
    paths = late.value.call("sys.path").get(20).values()
    assert [str(each / "data") in path for each, path in zip(there, paths, strict=True)] == [
        True
    ] * 2
    assert not any(str(project) in each for path in paths for each in path)


def test_the_receiver_needs_nothing_of_ours(hosts, project, monkeypatch):
    """Our current folder may be missing on the host; nothing was synced yet."""
    before = os.getcwd()
    monkeypatch.chdir(project)
    procs = hosts._spawn_anywhere("anywhere")
    explorers = procs.spawn("explorers", Explorer)
    assert explorers.value.call("os.getcwd()").get(20).values() == [before, before]
    procs.stop().get(10)


@pytest.mark.slow
def test_two_hosts_that_share_a_folder(hosts, project, tmp_path):
    """As on one machine, or on a shared file system: both write, and the end is the same."""
    workers = Workers()
    place = tmp_path / "shared"
    addresses, processes = workers(2, WORKSPACE_DIR=str(place))
    shared = attach_to_workers(workers=addresses)
    for number in range(200):
        write(project / f"many/file{number}", str(number))
    (project / "link").symlink_to("many")
    sync(shared, project)
    assert tree(place / project.name) == tree(project)
    for number in range(200):
        (project / f"many/file{number}").unlink()
    (project / "many").rmdir()
    write(project / "many", "a file now")
    sync(shared, project)
    assert tree(place / project.name) == tree(project)
    shared.shutdown().get(20)
    for each in processes:
        each.terminate()
        each.wait(10)
        each.stdout.close()


@pytest.mark.slow
@pytest.mark.fault
def test_a_host_that_is_lost_on_the_way(hosts, project, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    (project / "large").write_bytes(bytes(40_000_000))
    workers, places = Workers(), [tmp_path / "host0", tmp_path / "host1"]
    pairs = [workers(1, WORKSPACE_DIR=str(place)) for place in places]
    (living,), (victim,) = (processes for _, processes in pairs)
    both = attach_to_workers(workers=[address for [address], _ in pairs])
    both.initialized.get(30)
    staged = places[1] / ".monarch-sync"
    killer = threading.Thread(
        target=lambda: (eventually(lambda: list(staged.glob("staging-*/*"))), victim.kill())
    )
    killer.start()
    with pytest.raises(MeshError, match=r"^sync_workspace failed; the host hosts=1 \("):
        sync(both, project)
    killer.join()
    assert tree(places[0] / project.name) == tree(project)
    assert not (places[1] / project.name).exists()
    with pytest.raises(MeshError, match=r"the host hosts=1: it is lost .*attach it again"):
        sync(both, project)
    assert not told
    for process in (living, victim):
        process.terminate()
        process.wait(10)
        process.stdout.close()


def test_changed_modules_are_loaded_again(hosts, project):
    write(project / "auto/__init__.py", "")
    second = 10**18  # all in one: Python tells compiled files apart by second and size
    write(project / "auto/base.py", "VALUE = 1\n", mtime_ns=second)
    write(project / "auto/user.py", "from .base import VALUE\nDOUBLE = 2 * VALUE\n")
    write(project / "auto/other.py", "LOADED = []\n")
    sync(hosts, project)
    procs = hosts.spawn_procs()
    explorers = procs.spawn("explorers", Explorer)
    ask = "load('auto.user').DOUBLE, load('auto.other').LOADED.append(1), load('auto.other').LOADED"
    explorers.value.call("setattr(sys, 'dont_write_bytecode', False)").get(20)
    assert explorers.value.call(ask).get(20)[0] == (2, None, [1])
    write(project / "auto/base.py", "VALUE = 2\n", mtime_ns=second + 1)
    sync(hosts, project)
    assert explorers.value.call(ask).get(20)[0][0] == 2
    write(project / "auto/base.py", "VALUE = 3\n", mtime_ns=second + 2)
    report = asyncio.run(procs.sync_workspace(project, auto_reload=True))
    assert report.reloaded == ("auto.base", "auto.user")
    assert [each[0] for each in explorers.value.call(ask).get(20).values()] == [6, 6]
    assert explorers.value.call(ask).get(20)[1][2] == [1] * 4  # this one was left alone


def test_a_module_that_is_gone_or_broken(hosts, project):
    write(project / "frail/__init__.py", "")
    write(project / "frail/gone.py", "VALUE = 1\n")
    write(project / "frail/broken.py", "VALUE = 1\n")
    sync(hosts, project)
    explorers = hosts.spawn_procs(name="frail").spawn("explorers", Explorer)
    ask = "load('frail.gone').VALUE + load('frail.broken').VALUE"
    assert explorers.value.call(ask).get(20).values() == [2, 2]
    (project / "frail/gone.py").unlink()
    write(project / "frail/broken.py", "VALUE = (\n")
    with pytest.raises(
        MeshError, match=r"the files are synced.*rank 1 of 'frail': frail.broken: Syn"
    ):
        sync(hosts, project, auto_reload=True)
    assert explorers.value.call("'frail.gone' in sys.modules").get(20).values() == [False, False]
    write(project / "frail/broken.py", "VALUE = 7\n")
    assert sync(hosts, project, auto_reload=True).reloaded == ("frail.broken",)
    assert explorers.value.call("load('frail.broken').VALUE").get(20).values() == [7, 7]


def test_packages_of_a_conda_environment(hosts, places, project, monkeypatch, tmp_path):
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    with pytest.raises(ValueError, match="no conda environment is active.*conda activate"):
        sync(hosts, project, conda=True)
    with pytest.raises(ValueError, match="needs a conda environment"):
        sync(hosts, Workspace([project], env=None), conda=True)
    prefix = tmp_path / "env"
    monkeypatch.setenv("CONDA_PREFIX", str(prefix))
    with pytest.raises(ValueError, match="another Python"):
        sync(hosts, project, conda=True)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    write(prefix / "lib" / python / "site-packages/only_in_conda.py", "HERE = __file__\n")
    sync(hosts, Workspace([project], env=CondaEnvironment(str(prefix))), conda=True)
    explorers = hosts.spawn_procs().spawn("explorers", Explorer)
    assert explorers.value.call("load('only_in_conda').HERE").get(20).values() == [
        str(place / "conda/site-packages/only_in_conda.py") for place in places
    ]


def test_this_host_has_the_files(hosts, project):
    with pytest.raises(NotImplementedError, match="share its files.*attach_to_workers"):
        sync(this_host(), project)
    with pytest.raises(NotImplementedError, match="share its files"):
        sync(this_host().spawn_procs(), project)
    with pytest.raises(ValueError, match="is no folder of this host"):
        sync(hosts, Path("/no/such/folder"))
