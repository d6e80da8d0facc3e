"""Hosts over TCP: CURVE and an allow-list on the way in, one failure when a host is lost, nothing
left behind."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import zmq

from monarch_nb import (
    Actor,
    ActorError,
    RankUnreachable,
    SupervisionError,
    attach_to_workers,
    current_rank,
    endpoint,
)
from monarch_nb.config import Config
from monarch_nb.control.api import Control
from monarch_nb.control.client import client
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.elastic import restart
from monarch_nb.errors import AuthError, LaunchError
from monarch_nb.net import keys, wire
from monarch_nb.net.known_hosts import fingerprint
from tests import inside
from tests.support import descendants, eventually, is_running, until_exists


class Where(Actor):
    @endpoint
    def where(self):
        return os.getpid(), dict(current_rank())

    @endpoint
    def ask(self, other):
        return other.where.call().get(10)

    @endpoint
    def end_of(self, other, path):
        """How a call to another host ends, and how long after this."""
        waiting = other.wait_for.call("/never")
        Path(path).touch()
        error = waiting.exception(20)
        return f"{type(error).__name__}: {error}"

    @endpoint
    def use(self, hosts):
        hosts.spawn_procs().spawn("where", Where).where.call().get(20)

    @endpoint
    def wait_for(self, path):
        until_exists(path)

    @endpoint
    def length(self, data):
        return len(data)

    @endpoint
    def variable(self, name):
        return os.environ.get(name)

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


def test_ranks_look_for_peers_where_the_user_says(workers):
    addresses, _ = workers(1, GLOO_SOCKET_IFNAME="eth7")
    procs = attach_to_workers(workers=addresses).spawn_procs()
    variable = procs.spawn("where", Where).variable
    found = [variable.call_one(f"{library}_SOCKET_IFNAME") for library in ("GLOO", "NCCL")]
    assert [each.get(60) for each in found] == ["eth7", "lo"]


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

        at_work = [("idle", "where"), ("busy", "wait_for")] * 2
        eventually(lambda: [(r.state, r.what or "where") for r in look()[1]] == at_work, 10)
        snapshot, ranks = look()
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
@pytest.mark.fault
@pytest.mark.parametrize("victim", ["rank", "host"])
def test_a_rank_that_waits_for_another_host_hears_of_its_end(
    workers, monkeypatch, tmp_path, victim
):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    addresses, processes = workers(2)
    actors = attach_to_workers(workers=addresses).spawn_procs().spawn("where", Where)
    here, there = (actors.slice(hosts=host) for host in range(2))
    rank = there.where.call_one().get(60)[0]
    told = here.end_of.call_one(there, str(tmp_path / "waits"))
    until_exists(tmp_path / "waits")
    os.kill(rank if victim == "rank" else processes[1].pid, signal.SIGKILL)
    kind = "RankExited" if victim == "rank" else "RankUnreachable"
    assert told.get(5).startswith(kind)
    assert kind in here.end_of.call_one(there, str(tmp_path / "again")).get(5)


@pytest.mark.slow
def test_a_rank_that_uses_a_host_that_was_never_attached_is_told(workers, monkeypatch):
    told = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    addresses, _ = workers(1)
    procs = attach_to_workers(workers=addresses).spawn_procs()
    nowhere = attach_to_workers(workers=["tcp://127.0.0.1:9"])
    for limit_s in (25, 5):  # the second time it is known
        actor = procs.spawn("where", Where)
        waiting = actor.use.call_one(nowhere)
        error = waiting.exception(limit_s)  # of its endpoint, or of what it owns
        assert isinstance(error, ActorError | SupervisionError)
        assert "attach failed: config push failed during attach: tcp://127.0.0.1:9" in str(error)
        assert str(error).count("the process this actor was running on is gone") <= 1
    eventually(lambda: len(told) == 2, 5)


@pytest.mark.slow
def test_a_host_that_is_attached_already_is_the_same_host(workers):
    addresses, _ = workers(2)
    first = attach_to_workers(workers=addresses[:1])
    both = attach_to_workers(workers=addresses)
    [parent], parents = (
        list(each.spawn_procs().execute(os.getppid).values()) for each in (first, both)
    )
    assert parents[0] == parent != parents[1]
    with pytest.raises(RuntimeError, match="cannot stop `HostMesh` that is a reference instead of"):
        both.slice(hosts=1).stop()


@pytest.mark.slow
@pytest.mark.fault
def test_a_host_that_is_revoked_ends_its_ranks_and_is_dialled_only_when_named(workers, monkeypatch):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    addresses, _ = workers(2)
    procs = attach_to_workers(workers=addresses).spawn_procs()
    actors = procs.spawn("where", Where)
    pids = [value[0] for value in actors.where.call().get(60).values()]
    first, second = Control().hosts()
    own = fingerprint(keys.identity().public)
    assert [first.name, second.name] == addresses
    assert [each.address for each in (first, second)] == [
        each.removeprefix("tcp://") for each in addresses
    ]
    assert {each.key for each in (first, second)} == {own}
    assert (first.state, first.meshes) == ("here", (procs.name,))
    assert abs(first.since - time.time()) < 60
    with pytest.raises(ValueError, match="no host is called 'node9'. By number: "):
        Control().revoke_host("node9")
    assert Control().revoke_host(addresses[1]).number == second.number
    eventually(lambda: not is_running(pids[1]), 20, "the rank there has ended")
    assert Control().hosts()[1].state.endswith("it was revoked")
    eventually(lambda: inside.lost(procs) == [1], 20, "its rank is lost")
    procs.heal()
    assert [value[0] == pids[0] for value in actors.where.call().get(60).values()] == [True, False]
    assert {each >> HOST_SHIFT for each in inside.state(procs).agents} == {first.number}
    again = attach_to_workers(workers=[addresses[1]])
    assert again.initialized.get(30) is True
    assert Control().hosts()[-1].state == "here"


@pytest.mark.slow
@pytest.mark.fault
def test_actors_of_a_lost_host_restart_beside_the_others(workers, monkeypatch):
    told = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    addresses, pids_of = workers(2)
    procs = attach_to_workers(workers=addresses).spawn_procs()
    actors = procs.spawn("where", Where, supervise=restart())
    before = [pid for pid, _ in actors.where.call().get(60).values()]
    waiting = actors.slice(hosts=1).wait_for.call_one("/never")
    os.kill(pids_of[1].pid, signal.SIGKILL)
    assert "is not run again" in str(waiting.exception(60))
    after = [pid for pid, _ in actors.where.call().get(60).values()]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False]
    assert len({each >> HOST_SHIFT for each in inside.state(procs).agents}) == 1
    assert not told


@pytest.mark.slow
def test_meshes_of_hosts_that_are_shut_down_are_forgotten(workers):
    addresses, _ = workers(2)
    hosts = attach_to_workers(workers=addresses)
    procs = hosts.spawn_procs()
    actors = procs.spawn("where", Where)
    assert len(actors.where.call().get(60)) == 2
    before = len(client().supervision.states)
    hosts.shutdown().get(30)
    assert len(client().supervision.states) == before - 2
    with pytest.raises(RuntimeError, match="its host was shut down"):
        procs.spawn("others", Where)


@pytest.mark.slow
def test_an_unreachable_worker_is_named(home):
    hosts = attach_to_workers(workers=["tcp://127.0.0.1:9"])
    assert Config().attach_s <= 10
    with pytest.raises(RuntimeError, match=r"attach failed: .*tcp://127.0.0.1:9"):
        hosts.initialized.get(20)


def test_a_stranger_with_the_server_key_is_not_let_in(workers, home):
    [address], _ = workers(1)
    server = keys.identity(home).public
    context = zmq.Context()
    public, secret = zmq.curve_keypair()
    pair, refused = keys.KeyPair(public, secret), zmq.EVENT_HANDSHAKE_FAILED_AUTH
    stranger, monitor = wire.connect_to_join(context, address, pair, server, refused)
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
