"""Hosts over TCP: CURVE and an allow-list on the way in, one failure when a host is lost, nothing
left behind."""

import json
import os
import signal
import socket

import pytest
import zmq

from monarch_nb import (
    Actor,
    RankUnreachable,
    attach_to_workers,
    current_rank,
    endpoint,
)
from monarch_nb.control.client import client
from monarch_nb.errors import AuthError, LaunchError
from monarch_nb.net import keys, wire
from monarch_nb.net.gateway import unpack_hello
from tests.support import descendants, eventually, is_running, until_exists


class Where(Actor):
    @endpoint
    def where(self):
        return os.getpid(), dict(current_rank())

    @endpoint
    def ask(self, other):
        return other.where.call().get(10)

    @endpoint
    def wait_for(self, path):
        until_exists(path)

    @endpoint
    def length(self, data):
        return len(data)

    @endpoint
    def write(self, line, times):
        left = line * times
        while left:
            left = left[os.write(1, left) :]


def test_two_hosts_are_one_mesh(workers):
    addresses, _ = workers(2)
    hosts = attach_to_workers(workers=addresses)
    assert hosts.sizes == {"hosts": 2}
    assert hosts.initialized.get(30) is True
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    actors = procs.spawn("where", Where)
    answers = actors.where.call().get(60)
    assert [value[1] for value in answers.values()] == [
        {"hosts": h, "gpus": g} for h in range(2) for g in range(2)
    ]
    assert len({value[0] for value in answers.values()}) == 4
    other = actors.slice(hosts=0, gpus=0).ask.call_one(actors.slice(hosts=1)).get(20)
    assert [value[0] for value in other.values()] == [answers[2][0], answers[3][0]]
    assert actors.length.call(b"x" * 3_000_000).get(30).values() == [3_000_000] * 4
    procs.stop().get(20)


@pytest.mark.slow
@pytest.mark.fault
def test_one_snapshot_shows_the_ranks_of_all_hosts(workers, monkeypatch, tmp_path):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    addresses, processes = workers(2)
    procs = attach_to_workers(workers=addresses).spawn_procs(per_host={"gpus": 2})
    actors = procs.spawn("where", Where)
    actors.where.call().get(60)
    watch = client().status.watch(0.1)
    try:
        waiting = actors.slice(gpus=1).wait_for.call(str(tmp_path / "go"))

        def look():
            snapshot = client().snapshot()
            return snapshot, snapshot.meshes[0].ranks

        calls = ["where", "wait_for"] * 2
        eventually(lambda: [each.what or "where" for each in look()[1]] == calls, 10)
        snapshot, ranks = look()
        assert [each.state for each in ranks] == ["idle", "busy"] * 2
        assert all(0 < each.age_s(snapshot.at) < 20 for each in ranks)
        name = socket.gethostname()
        assert [each.host for each in ranks] == [0, 0, 1, 1]
        assert [(each.name, each.ended) for each in snapshot.hosts] == [
            (f"{name} (1)", None), (f"{name} (2)", None),
        ]  # fmt: skip
        os.kill(processes[1].pid, signal.SIGKILL)
        eventually(lambda: look()[1][3].state == "unreachable", 20)
        assert look()[1][2].state == "unreachable"
        here, lost = look()[0].hosts
        assert here.ended is None
        assert lost.ended
        (tmp_path / "go").touch()
        assert waiting.exception(20)
        eventually(lambda: [each.state for each in look()[1][:2]] == ["idle"] * 2, 10)
    finally:
        watch.close()


@pytest.mark.slow
def test_what_ranks_of_other_hosts_write_from_c_is_whole_in_the_log_here(workers):
    addresses, _ = workers(2)
    procs = attach_to_workers(workers=addresses).spawn_procs(name="far")
    actors = procs.spawn("where", Where)
    client().on_output(lambda _: None)  # nothing is printed
    line = b"x" * 99 + b"\n"
    actors.write.call(line, 50_000).get(60)
    logs = client().output.logbook.folder

    def written():
        return [(logs / f"far.{rank}.log").read_bytes() for rank in range(2)]

    eventually(lambda: sum(map(len, written())) >= 10_000_000, 20, "the rest in the logs")
    assert written() == [line * 50_000] * 2
    procs.stop().get(20)


@pytest.mark.slow
@pytest.mark.fault
def test_a_lost_host_is_told_once_and_the_other_goes_on(workers, monkeypatch):
    told = []  # when the host is lost between two calls
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    addresses, processes = workers(2)
    hosts = attach_to_workers(workers=addresses)
    actors = hosts.spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
    actors.where.call().get(60)
    agent = eventually(lambda: descendants(processes[1].pid), 5)
    os.kill(processes[1].pid, signal.SIGKILL)
    with pytest.raises(RankUnreachable) as lost:
        eventually(lambda: bool(actors.slice(hosts=1).where.call().get(10)) and None, 10)
    assert set(lost.value.ranks) <= {2, 3}
    assert len(told) <= 1
    assert len(actors.slice(hosts=0).where.call().get(10)) == 2
    eventually(lambda: not any(map(is_running, agent)), 5)


@pytest.mark.slow
def test_an_unreachable_worker_is_named(home):
    hosts = attach_to_workers(workers=["tcp://127.0.0.1:9"])
    from monarch_nb.control.hosts import agents as module

    assert module.ATTACH_S <= 10
    with pytest.raises(RuntimeError, match=r"attach failed: .*tcp://127.0.0.1:9"):
        hosts.initialized.get(20)


def test_a_stranger_with_the_server_key_is_not_let_in(workers, home):
    [address], _ = workers(1)
    server = keys.identity(home).public
    context = zmq.Context()
    public, secret = zmq.curve_keypair()
    stranger = wire.connect_server(context, address, keys.KeyPair(public, secret), server)
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    stranger.send(b"hello")
    assert monitor.poll(5000), "the handshake was not refused"
    assert not stranger.poll(200)
    plain = context.socket(zmq.DEALER)
    plain.linger = 0
    wire_connect = plain.connect
    wire_connect(address)
    plain.send(b"hello")
    assert not plain.poll(500)
    stranger.disable_monitor()
    for each in (monitor, stranger, plain):
        each.close(0)
    context.term()


@pytest.mark.parametrize("place", ["*:1", "[::]:1", ":1"])
def test_no_address_means_every_interface(place, home):
    with pytest.raises(ValueError, match="every interface"):
        attach_to_workers(workers=[f"tcp://{place}"])
    with pytest.raises(ValueError, match="every interface"):
        wire.check_address("tcp://" + ".".join("0000") + ":1")


def test_an_address_in_use_is_one_clear_line(workers, home):
    from monarch_nb.control.hosts.attach import HostWorker

    [address], _ = workers(1)
    with pytest.raises(LaunchError, match=r"cannot listen at tcp://127.0.0.1:\d+: Address already"):
        HostWorker(address, None)


def test_a_key_file_that_others_can_read_is_refused(home):
    made = keys.identity(home)
    path = home / keys.IDENTITY
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["public"].encode() == made.public
    path.chmod(0o644)
    with pytest.raises(AuthError, match="chmod 600"):
        keys.identity(home)
    path.chmod(0o600)
    (home / keys.AUTHORIZED).write_text("# a friend\n" + "k" * 40 + "\n")
    (home / keys.AUTHORIZED).chmod(0o600)
    assert keys.allowed(home) == {made.public, b"k" * 40}
    home.chmod(0o755)
    with pytest.raises(AuthError, match="0700"):
        keys.identity(home)


def test_a_link_to_a_key_file_is_refused(home, tmp_path):
    keys.identity(home)
    (home / keys.IDENTITY).rename(tmp_path / "elsewhere")
    (home / keys.IDENTITY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuthError, match="cannot be read"):
        keys.identity(home)


@pytest.mark.parametrize("data", [b"", b"x" * 7, b"\x80\x04pickle", b"MNB9" + b"\0" * 12])
def test_a_hello_is_a_fixed_record(data):
    assert isinstance(unpack_hello(data), str)
