"""The writing end of a sync: whatever it is told, nothing is written outside of its folder."""

import pytest

from monarch_nb import ActorError, this_proc
from monarch_nb.core.wire.manifest import FILE, FOLDER, LINK, Entry
from monarch_nb.services.workspace.receiver import WorkspaceReceiver


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSPACE_DIR", str(tmp_path / "host/workspace"))
    return tmp_path / "host/workspace"


@pytest.fixture
def receiver(root, mesh_runtime):
    made = this_proc().spawn("receiver", WorkspaceReceiver)
    assert made.where.call_one().get(5)[1] == str(root)
    yield made
    made.stop().get(5)
    assert not list((root / ".monarch-sync").glob("staging-*"))


def everything(folder):
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


def a_file(path, size=1):
    return Entry(path, FILE, 0o644, size, 0)


PATHS = ["../x", "/etc/x", "a/../../x", "a//x", "", ".", "./x", "x/..", "x\0y", ".monarch-sync/x"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leaves_is_refused(receiver, root, path):
    for kind in (FILE, FOLDER, LINK):
        with pytest.raises(ActorError, match="is refused: it is no path inside the workspace"):
            receiver.compare.call_one("place", [Entry(path, kind, 0o644, target="y")]).get(5)
    if path:
        with pytest.raises(ActorError, match="is refused"):
            receiver.compare.call_one(path, [a_file("x")]).get(5)
    found = {each.partition("/staging-")[0] for each in everything(root.parent)}
    assert found <= {"workspace", "workspace/.monarch-sync"}


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "a/..", "a/../../x", "", "x\0"])
def test_a_link_that_leaves_is_refused(receiver, target):
    with pytest.raises(ActorError, match="leaves the workspace"):
        receiver.compare.call_one("place", [Entry("link", LINK, target=target)]).get(5)


def test_what_was_not_announced_is_refused(receiver):
    receiver.compare.call_one("place", [Entry("folder", FOLDER, 0o755), a_file("x")]).get(5)
    with pytest.raises(ActorError, match="not_announced"):
        receiver.write.call_one("place", [("not_announced", 0, b"x")]).get(5)
    with pytest.raises(ActorError, match="not announced as a file"):
        receiver.write.call_one("place", [("folder", 0, b"x")]).get(5)
    with pytest.raises(ActorError, match="does not lie in a folder that was sent"):
        receiver.compare.call_one("place", [a_file("elsewhere/x")]).get(5)
    link = Entry("link", LINK, target="folder")
    with pytest.raises(ActorError, match="does not lie in a folder that was sent"):
        receiver.compare.call_one("place", [link, a_file("link/x")]).get(5)
    with pytest.raises(ActorError, match="no kind of file"):
        receiver.compare.call_one("place", [Entry("device", "device")]).get(5)


def test_what_did_not_arrive_whole_is_not_put_into_place(receiver, root):
    receiver.compare.call_one("place", [a_file("x", 4)]).get(5)
    receiver.write.call_one("place", [("x", 0, b"abc")]).get(5)
    with pytest.raises(ActorError, match="x: it did not arrive whole"):
        receiver.commit.call_one("place", [], []).get(5)
    assert not (root / "place").exists()


def test_the_folder_itself_may_be_no_link(receiver, root, tmp_path):
    (tmp_path / "outside").mkdir()
    (root / "place").symlink_to(tmp_path / "outside")
    receiver.compare.call_one("place", [a_file("x")]).get(5)
    receiver.write.call_one("place", [("x", 0, b"a")]).get(5)
    with pytest.raises(ActorError, match="x: its folder is a symbolic link there"):
        receiver.commit.call_one("place", [], []).get(5)
    assert everything(tmp_path / "outside") == []


def test_a_forged_record_deletes_nothing_outside(receiver, root):
    precious = root.parent / "precious"
    precious.write_text("mine")
    record = root / ".monarch-sync/place.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"../../precious": "file"}')
    receiver.compare.call_one("place", [a_file("x")]).get(5)
    receiver.write.call_one("place", [("x", 0, b"a")]).get(5)
    with pytest.raises(ActorError, match="is refused"):
        receiver.commit.call_one("place", [], []).get(5)
    assert precious.read_text() == "mine"
