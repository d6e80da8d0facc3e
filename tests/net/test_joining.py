"""Hosts that a launcher starts join the job of their ticket, and are gone with it."""

import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from monarch_nb import Actor, endpoint, shutdown_context
from monarch_nb.control.client import client
from monarch_nb.core.shape.extent import Extent
from monarch_nb.core.wire.messages.hosts import PROTOCOL, Join, Offer
from monarch_nb.errors import LaunchError
from monarch_nb.host.member import HostMember
from monarch_nb.host.rundir import sweep_all
from monarch_nb.host.versions import versions
from monarch_nb.meshes.proc_mesh import HostMesh, HostsState
from monarch_nb.net import wire
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.joining import OTHER_KEYS, Joins, Ticket, offer
from monarch_nb.net.keys import KeyPair
from tests.net.forwarder import free_port
from tests.support import descendants, eventually, is_running

JOIN = [sys.executable, "-P", "-m", "monarch_nb.host.join"]
HERE = "tcp://127.0.0.1:0"


class Where(Actor):
    @endpoint
    def where(self):
        return os.getppid(), os.environ.get("FROM_THE_TICKET")

    @endpoint
    def ask(self, other):
        return other.where.call_one().get(20)


class Job:
    """A job of so many hosts, and the processes that join it."""

    def __init__(self, count: int) -> None:
        names = [f"node{index}" for index in range(count)]
        self.numbers, self.ticket = client().await_hosts(names, HERE)
        state = HostsState([wire.agent_id(host) for host in self.numbers])
        self.hosts = HostMesh(state, Extent(["hosts"], [count]).region.as_shape())
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, index: int, *options: str, ticket: bytes | None = None) -> subprocess.Popen:
        command = [*JOIN, "--index", str(index), *options]
        started = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1)
        self.started.append(started)
        started.stdin.write(self.ticket.to_line() if ticket is None else ticket)
        started.stdin.close()
        return started

    def refused(self, index: int, *options: str, ticket: bytes | None = None) -> str:
        """What a host says that was not taken: one line, and no traceback."""
        started = self.start(index, *options, ticket=ticket)
        said = started.stderr.read().decode()
        assert started.wait(20) == 1
        assert said.startswith("monarch_nb: ")
        assert said.count("\n") == 1
        return said

    def end(self) -> None:
        for each in self.started:
            each.wait(10)  # they end with the job
            each.stdout.close()
            each.stderr.close()


@pytest.fixture
def job(home):
    made = []

    def begin(count: int) -> Job:
        made.append(Job(count))
        return made[-1]

    yield begin
    shutdown_context().get(20)
    for each in made:
        each.end()


@pytest.mark.slow
def test_hosts_join_in_the_order_of_their_places_and_end_with_the_job(job):
    two = job(2)
    procs = two.hosts.spawn_procs(per_host={"gpus": 2})  # before any of them is there
    actors = procs.spawn("where", Where)
    two.ticket = two.ticket._replace(env={"FROM_THE_TICKET": "set"})
    second, first = two.start(1), two.start(0)
    answers = actors.where.call().get(60)
    assert two.hosts.initialized.get(5)
    children = [descendants(each.pid) for each in (first, first, second, second)]
    values = answers.values()
    assert all(parent in some for (parent, _), some in zip(values, children, strict=True))
    assert {env for _, env in values} == {"set"}
    other = actors.slice(hosts=1, gpus=1)
    asked = actors.slice(hosts=0, gpus=0).ask.call_one(other).get(20)
    assert list(asked) == list(answers[3])
    two.hosts.shutdown().get(20)
    assert [each.wait(10) for each in two.started] == [0, 0]


@pytest.mark.slow
def test_a_host_tries_all_addresses_at_once(job):
    one = job(1)
    nowhere = ["tcp://127.0.0.1:9", "tcp://10.255.255.1:1"]
    one.ticket = one.ticket._replace(addresses=[*nowhere, *one.ticket.addresses])
    one.start(0)
    assert one.hosts.initialized.get(10)
    actor = one.hosts.spawn_procs().spawn("where", Where)
    assert actor.where.call_one().get(30)


@pytest.mark.slow
def test_a_place_is_taken_once_and_then_the_ticket_is_of_no_use(job):
    two = job(2)
    two.start(0)
    client().hosts_ready([wire.agent_id(two.numbers[0])]).get(20)
    assert "place 0 of the job is taken" in two.refused(0)
    assert "the places 0 to 1, not 2" in two.refused(2)
    other = two.ticket._replace(job="another")
    assert "no such job" in two.refused(1, ticket=other.to_line())
    two.start(1)
    assert two.hosts.initialized.get(20)
    assert "answered within 1 s" in two.refused(1, "--within", "1")


@pytest.mark.slow
def test_a_ticket_in_a_file_is_private(job, tmp_path):
    one = job(1)
    path = tmp_path / "ticket"
    path.write_bytes(one.ticket.to_line())
    path.chmod(0o644)
    assert "chmod 600" in one.refused(0, "--ticket", str(path))
    path.chmod(0o600)
    one.start(0, "--ticket", str(path))
    assert one.hosts.initialized.get(20)
    said = one.refused(0, "--ticket", str(tmp_path / "none"))
    assert str(tmp_path / "none") in said


@pytest.mark.parametrize("line", [b"", b"\n", b"[1]\n", b"{}\n", b'{"job": 1}\n', b"\xff\xfe\n"])
def test_what_is_no_ticket_is_said_and_not_shown(job, line):
    assert "no ticket of a monarch_nb job" in job(1).refused(0, ticket=line)


@pytest.mark.parametrize("name, version", [("Python", "3.9.1"), ("monarch_nb", "0.0.9")])
def test_a_host_with_another_version_is_told_and_so_is_the_job(job, name, version):
    one = job(1)
    theirs = versions() | {name: version}
    with pytest.raises(LaunchError, match=rf"{name} {version} is installed there, \S+ here"):
        offer(one.ticket, Offer(PROTOCOL, theirs, one.ticket.job, 0, "old", []), 10.0)
    with pytest.raises(RuntimeError, match=rf"node0 did not join: old: {name} {version} is"):
        one.hosts.initialized.get(5)


def test_a_stranger_s_keys_are_not_let_in(job):
    one = job(1)
    stranger = one.ticket._replace(public=one.ticket.head, secret=one.ticket.secret)
    assert "answered within 1 s" in one.refused(0, "--within", "1", ticket=stranger.to_line())
    assert "ticket" not in repr(one.ticket.keys)
    assert one.ticket.secret not in repr(one.ticket.keys)


def test_a_ticket_survives_being_written():
    ticket = Ticket("job", ["tcp://a:1"], "head", "public", "secret", {"A": "1"})
    assert Ticket.from_line(ticket.to_line()) == ticket


@pytest.mark.slow
@pytest.mark.fault
def test_a_host_whose_controller_was_killed_ends(home, tmp_path):
    program = (
        "import sys; from monarch_nb.control.client import client\n"
        f"_, ticket = client().await_hosts(['one'], {HERE!r})\n"
        "sys.stdout.buffer.write(ticket.to_line()); sys.stdout.flush()\n"
        "from monarch_nb.net.wire import agent_id\n"
        "client().hosts_ready([agent_id(2)]).get(30)\n"
        "print('there', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as controller:
        ticket = controller.stdout.readline()
        with subprocess.Popen([*JOIN, "--index", "0"], stdin=-1, stderr=-1) as host:
            host.stdin.write(ticket)
            host.stdin.close()
            assert controller.stdout.readline() == b"there\n"
            family = eventually(lambda: descendants(host.pid))
            os.kill(controller.pid, signal.SIGKILL)
            assert b"the job has gone" in host.stderr.read()
            assert host.wait(5) == 0
            eventually(lambda: not any(map(is_running, family)))
        controller.stdin.close()
    sweep_all()  # the controller's run dir


@pytest.mark.fault
def test_a_host_ends_with_the_process_that_has_started_it():
    """As an actor of Ray's does, which may be killed at any time."""
    pair = KeyPair.new()
    public, secret = pair.public.decode(), pair.secret.decode()
    line = Ticket("job", ["tcp://127.0.0.1:9"], public, public, secret, {}).to_line()
    program = (
        "import os, subprocess, sys\n"
        f"command = [*{JOIN!r}, '--index', '0', '--parent', str(os.getpid())]\n"
        "host = subprocess.Popen(command, stdin=subprocess.PIPE)\n"
        f"host.stdin.write({line!r}); host.stdin.flush()\n"
        "print(host.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        host = int(parent.stdout.readline())
        eventually(lambda: len(os.listdir(f"/proc/{host}/task")) > 1, 20, "it dials")
        parent.kill()
    eventually(lambda: not is_running(host), 10, "it ends")


@pytest.mark.fault
def test_a_worker_that_is_told_to_end_as_it_starts_leaves_nothing(home):
    folder = Path(tempfile.gettempdir())
    before = set(folder.iterdir())
    command = [sys.executable, "-P", "-m", "monarch_nb.control.hosts.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        made = eventually(lambda: set(folder.glob("mnb-*")) - before, 20, "it makes its run dir")
        worker.terminate()
    assert not any(path.exists() for path in made)


@pytest.mark.fault
def test_a_controller_that_is_gone_right_after_it_took_a_host_is_the_end_of_its_job():
    """As one that goes later: the host leaves in order, it has not failed."""
    member = HostMember(stays=False)
    try:
        member.join(1, wire.agent_id(0), Secret.new(), [f"tcp://127.0.0.1:{free_port()}"])
        assert "can be reached any more" in str(member.wait())
    finally:
        member.close()


@pytest.mark.fault
def test_a_signal_ends_the_wait_for_a_job_though_another_thread_took_it():
    """As one that comes just before a wait: it does not end what waits by itself."""

    class Ended(Exception):
        pass

    def end(*_):
        raise Ended

    def take_it():
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    pair = KeyPair.new()
    public, secret = pair.public.decode(), pair.secret.decode()
    ticket = Ticket("job", ["tcp://127.0.0.1:9"], public, public, secret, {})
    before = signal.signal(signal.SIGUSR1, end)
    began = time.monotonic()
    other = threading.Timer(0.3, take_it)
    other.start()
    try:
        with pytest.raises(Ended):
            offer(ticket, Offer(PROTOCOL, versions(), "job", 0, "here", []), 20)
        assert time.monotonic() - began < 5
    finally:
        other.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_host_does_not_begin_for_a_process_that_has_ended():
    command = [*JOIN, "--index", "0", "--parent", "1"]
    done = subprocess.run(command, input=b"", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"process 1 has ended" in done.stderr


def test_the_thread_that_asks_hosts_may_end_while_it_is_being_woken(monkeypatch):
    """The thread runs the last action as soon as it is queued, before `close` has woken it."""
    joins, write = Joins(lambda *_: None, lambda *_: None), os.eventfd_write
    [thread] = [each for each in threading.enumerate() if each.name == "monarch-joining"]

    def slowly(fd: int, value: int) -> None:
        write(fd, value)
        thread.join(0.3)
        write(fd, value)

    monkeypatch.setattr(os, "eventfd_write", slowly)
    joins.close()
    assert not thread.is_alive()
    joins.give_up(0)  # nobody is asked any more
    joins.close()


@pytest.mark.parametrize(
    "line", [b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", b"HTTP/1.1 400 Bad Request\r\n"]
)
@pytest.mark.parametrize("is_late", [False, True], ids=["asked at once", "asked late"])
def test_what_is_no_worker_is_told_of_also_if_it_speaks_first(monkeypatch, is_late, line):
    """Late: the thread that asks got no processor until libzmq had given the connection up."""
    connect, refused = wire.connect_to_join, queue.SimpleQueue[str]()

    def slowly(*args):
        both = connect(*args)
        eventually(lambda: not both[0].poll(0, zmq.POLLOUT))
        return both

    if is_late:
        monkeypatch.setattr(wire, "connect_to_join", slowly)
    joins, keys = Joins(lambda *_: None, lambda _, why: refused.put(why)), KeyPair.new()
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as connections:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        joins.ask(2, address, keys, keys.public, Join(PROTOCOL, {}, 2, 1, ""))
        for _ in range(3):
            connections.enter_context(server.accept()[0]).sendall(line * 4)
        assert refused.get(timeout=5) == OTHER_KEYS
    joins.close()
