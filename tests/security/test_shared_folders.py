"""Rule 9: where other users may write too, one of them puts folders and links in our way."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_nb import ActorError, this_proc
from monarch_nb.control.output.logbook import Logbook
from monarch_nb.errors import AuthError
from monarch_nb.net import private, wire
from monarch_nb.net.streams import Stream
from monarch_nb.services.workspace.receiver import WorkspaceReceiver

NOBODY = 65534
NOON = 12 * 3600.0
SECRET = "password = 'only for me'\n"


@pytest.fixture
def shared(needs) -> Iterator[Path]:
    """A folder as /tmp is."""
    needs("root")
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o1777)
        yield folder


@pytest.fixture
def precious(tmp_path) -> Path:
    """A file of the user's, into which nothing must be written."""
    file = tmp_path / "precious"
    file.write_text("precious\n")
    yield file
    assert file.read_text() == "precious\n"


@pytest.fixture
def stranger(shared) -> Callable[[str], None]:
    """`stranger("command")` runs a shell command as another user, in the shared folder."""

    def run(command: str) -> None:
        subprocess.run(
            ["/bin/sh", "-ec", command], user=NOBODY, group=NOBODY, extra_groups=[], cwd=shared,
            check=True,
        )  # fmt: skip

    return run


def texts_of_strangers(folder: Path) -> str:
    """All that a stranger could read there."""
    files = [each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()]
    owned = [each for each in files if each.stat().st_uid == NOBODY or each.stat().st_mode & 0o004]
    return "".join(each.read_text() for each in owned)


def test_the_log_of_a_rank_is_not_written_where_a_stranger_has_been(
    shared, stranger, precious, caplog
):
    stranger(f"mkdir -m 777 logs logs/of_a_kernel; ln -s {precious} logs/of_a_kernel/mesh0.0.log")
    book = Logbook(shared / "logs/of_a_kernel", 1 << 20)
    book.write("mesh0", 0, 1, 0, SECRET, NOON)
    book.close()
    assert SECRET not in texts_of_strangers(shared)
    assert "logs of ranks are not written" in caplog.text
    assert "other users may replace what is in" in caplog.text


def test_the_log_of_a_rank_is_not_written_where_everybody_may_write(tmp_path, caplog):
    tmp_path.chmod(0o777)
    book = Logbook(tmp_path / "of_a_kernel", 1 << 20)
    book.write("mesh0", 0, 1, 0, SECRET, NOON)
    book.close()
    assert not (tmp_path / "of_a_kernel").exists()
    assert "other users may replace what is in" in caplog.text


def test_a_folder_of_logs_that_a_stranger_has_made_first(shared, stranger, precious, caplog):
    stranger(f"mkdir -m 777 of_a_kernel; ln -s {precious} of_a_kernel/mesh0.0.log")
    book = Logbook(shared / "of_a_kernel", 1 << 20)
    book.write("mesh0", 0, 1, 0, SECRET, NOON)
    book.close()
    assert SECRET not in texts_of_strangers(shared)
    assert "mode 0700 that you own" in caplog.text


def test_logs_in_a_folder_as_tmp_is(shared):
    book = Logbook(shared / "of_a_kernel", 1 << 20)
    book.write("mesh0", 0, 1, 0, SECRET, NOON)
    book.close()
    assert (shared / "of_a_kernel/mesh0.0.log").read_text() == SECRET
    assert SECRET not in texts_of_strangers(shared)


@pytest.mark.usefixtures("mesh_runtime")
@pytest.mark.parametrize(
    "first",
    ["mkdir -m 755 ws", "mkdir -m 777 ws", "mkdir -m 777 other; ln -s other ws"],
    ids=["folder", "open folder", "link"],
)
def test_a_workspace_that_a_stranger_has_made_first(shared, stranger, monkeypatch, first):
    stranger(first)
    monkeypatch.setenv("WORKSPACE_DIR", str(shared / "ws"))
    with pytest.raises(ActorError, match="code is imported from there"):
        where()


@pytest.mark.usefixtures("mesh_runtime")
def test_a_strangers_link_to_a_folder_of_the_users(shared, stranger, monkeypatch, tmp_path):
    stranger(f"ln -s {tmp_path} ws")
    monkeypatch.setenv("WORKSPACE_DIR", str(shared / "ws"))
    with pytest.raises(ActorError, match="code is imported from there"):
        where()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("mesh_runtime")
def test_a_workspace_that_others_may_write_to(tmp_path, monkeypatch):
    tmp_path.chmod(0o775)
    monkeypatch.setenv("WORKSPACE_DIR", str(tmp_path))
    with pytest.raises(ActorError, match=f"chmod go-w {tmp_path}"):
        where()
    tmp_path.chmod(0o755)
    assert where()[1] == str(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("WORKSPACE_DIR", str(tmp_path / "link"))
    assert where()[1] == str(tmp_path)


def where() -> tuple[str, str]:
    """What a host answers first when it is to take a workspace."""
    receiver = this_proc().spawn("receiver", WorkspaceReceiver)
    try:
        return receiver.where.call_one().get(5)
    finally:
        receiver.stop().get(5)


class NoLoop:
    def retry(self, stream):
        raise AssertionError("it looks for a process there")


def test_nobody_connects_in_a_strangers_folder(shared, stranger):
    stranger("mkdir -m 755 run")
    with pytest.raises(AuthError, match="0700"):
        Stream(shared / "run", 7, NoLoop())
    context = wire.new_context()
    for connect in (
        lambda: wire.connect_outbox(context, shared / "run", 7),
        lambda: wire.connect_debug_server(shared / "run"),
    ):
        with pytest.raises(AuthError, match="0700"):
            connect()
    context.term()


def test_a_new_file_is_new(tmp_path, precious):
    (tmp_path / "link").symlink_to(precious)
    for there in (tmp_path / "link", precious):
        with pytest.raises(FileExistsError):
            private.write_new(there, SECRET)
    before = os.umask(0)
    private.write_new(tmp_path / "new", SECRET)
    os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
