"""Rule 1: on one host, sockets in a directory of mode 0700; a loose one is refused by everybody."""

import os
import stat
from pathlib import Path

import pytest

from monarch_nb import RankExited, this_host
from monarch_nb.control.client import client
from monarch_nb.errors import AuthError
from monarch_nb.host.agent.mailbox import Mailbox
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import private, wire
from monarch_nb.net.links import Links
from monarch_nb.testing.processes import socket_inodes
from tests.faults.actors import Worker


def test_a_file_that_others_can_read_is_no_secret(tmp_path):
    file = tmp_path / "key"
    private.write_new(file, "secret")
    assert private.read_private(file) == "secret"
    file.chmod(0o640)
    with pytest.raises(AuthError, match="must be yours and of mode 0600"):
        private.read_private(file)


def test_nothing_is_written_over_what_is_there(tmp_path):
    file, link = tmp_path / "key", tmp_path / "link"
    file.write_text("precious")
    link.symlink_to(tmp_path / "elsewhere")
    for each in (file, link):
        with pytest.raises(FileExistsError):
            private.write_new(each, "other")
    assert file.read_text() == "precious"
    assert not (tmp_path / "elsewhere").exists()


def test_the_run_dir_is_ours_alone_whatever_the_umask():
    before = os.umask(0)
    try:
        made = new_run_dir()
    finally:
        os.umask(before)
    info = made.path.lstat()
    assert stat.S_IMODE(info.st_mode) == 0o700
    assert info.st_uid == os.getuid()
    assert all(stat.S_IMODE(each.lstat().st_mode) == 0o600 for each in made.path.iterdir())
    made.remove()
    assert not made.path.exists()


@pytest.mark.slow
def test_every_unix_socket_of_the_mesh_lies_in_it(mesh):
    run_dir = str(client().proc.links.run_dir)
    assert stat.S_IMODE(os.stat(run_dir).st_mode) == 0o700
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    listening = {
        f[6]: f[7] if len(f) > 7 else "" for f in map(str.split, lines) if f[3] == "00010000"
    }
    for name, pid in mesh.all.items():
        for inode in socket_inodes(pid) & listening.keys():
            path = listening[inode]
            assert path.startswith(run_dir + "/"), f"{name} listens at {path!r}"


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o710, 0o777, 0o1777])
def test_a_loose_directory_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    for bind in (
        lambda: Links(tmp_path, 5, lambda _: None),
        lambda: Mailbox(tmp_path, 6),
        lambda: wire.bind_stream(tmp_path, 7),
    ):
        with pytest.raises(AuthError, match="0700"):
            bind()
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o700)


def test_a_link_to_a_directory_and_a_file_are_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        with pytest.raises(AuthError, match="0700"):
            private.check_private(tmp_path / name)


def test_a_directory_of_somebody_else_is_refused(tmp_path, needs):
    needs("root")
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(AuthError, match="you own"):
        private.check_private(tmp_path)


def test_rank_and_client_refuse_a_run_dir_that_was_opened_up(mesh):
    run_dir = client().proc.links.run_dir
    run_dir.chmod(0o755)
    try:
        procs = this_host().spawn_procs(per_host={"gpus": 1})
        with pytest.raises(AuthError, match="0700"):
            procs.spawn("w", Worker)
        error = procs.initialized.exception(timeout=20)
    finally:
        run_dir.chmod(0o700)
    procs.stop().get(timeout=10)
    assert isinstance(error, RankExited)
    assert "must be a directory of mode 0700" in error.log_tail
    assert mesh.workers.add.call().get(timeout=10) is not None
