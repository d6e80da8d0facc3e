"""Strangers at the port of an offered host: whatever they do, it stays usable, or is again soon."""

import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import textwrap
import time

import pytest

from monarch_nb import Actor, attach_to_workers, endpoint, shutdown_context
from monarch_nb.net import wire
from tests.support import eventually, open_fds, rss_bytes

NOBODY = 65534
FILES = 300
AS_ANOTHER_USER = f"""
import os, socket, struct, sys
if not os.getuid():
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
"""
HOLD_OPEN = AS_ANOTHER_USER + textwrap.dedent("""
    place, said = ("127.0.0.1", int(sys.argv[1])), sys.argv[2].encode()
    held = []
    for _ in range(400):
        each = socket.socket()
        each.setblocking(False)
        each.connect_ex(place)
        held.append(each)
    for each in held:
        each.setblocking(True)
        try:
            each.sendall(said)
        except OSError:
            pass
    print("held", flush=True)
    sys.stdin.read()
""")

HUGE_FRAME = AS_ANOTHER_USER + textwrap.dedent("""
    greeting = b"\\xff" + bytes(8) + b"\\x7f\\3\\1" + b"CURVE".ljust(20, b"\\0") + bytes(32)
    with socket.socket() as out:
        out.settimeout(5)
        out.connect(("127.0.0.1", int(sys.argv[1])))
        out.sendall(greeting)
        out.sendall(b"\\6" + struct.pack(">Q", 8 << 30))
        sent = 0
        try:
            while sent < 200 << 20:
                sent += out.send(bytes(1 << 20))
        except (BrokenPipeError, ConnectionResetError):
            pass
    print(sent)
""")


class Adder(Actor):
    @endpoint
    def add(self, a, b):
        return a + b


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


@contextlib.contextmanager
def flood(address: str, said: str = ""):
    command = [sys.executable, "-c", HOLD_OPEN, port_of(address), said]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as strangers:
        assert strangers.stdout.readline() == "held\n"
        yield
        strangers.stdin.close()


def attached(address: str):
    return attach_to_workers(workers=[address]).spawn_procs().spawn("adders", Adder)


@pytest.fixture
def offered(workers):
    """A host, and its process, which may not open many files."""
    [address], [process] = workers(1)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    return address, process.pid


MOST = 64  # strangers that are let wait
HALF_A_GREETING = "MNB2" + "x" * 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "said", ["", HALF_A_GREETING, "GET / HTTP/1.1\r\n\r\n"], ids=["silent", "half", "HTTP"]
)
def test_strangers_take_few_files_and_calls_and_spawns_go_on(offered, said):
    address, pid = offered
    hosts = attach_to_workers(workers=[address])
    first = hosts.spawn_procs().spawn("first", Adder)
    assert first.add.call_one(1, 2).get(30) == 3  # the host has opened what it needs
    usual = len(open_fds(pid))
    with flood(address, said):
        if said.startswith("GET"):  # cut off at once
            eventually(lambda: len(open_fds(pid)) <= usual + 1, 5.0)
        adders = hosts.spawn_procs().spawn("adders", Adder)
        for number in range(20):
            assert adders.add.call_one(number, 2).get(30) == number + 2
            assert len(open_fds(pid)) <= usual + MOST + 20
        eventually(lambda: len(open_fds(pid)) <= usual + 20, 15.0, "they are cut off")
        assert adders.add.call_one(1, 2).get(10) == 3


@pytest.mark.slow
def test_a_host_can_be_had_while_strangers_flood_it(offered):
    address, pid = offered
    usual = len(open_fds(pid))
    with flood(address):
        assert attached(address).add.call_one(1, 2).get(30) == 3
        assert len(open_fds(pid)) <= usual + MOST + 40
    shutdown_context().get(20)
    eventually(lambda: len(open_fds(pid)) <= usual + 5, 15.0)
    assert attached(address).add.call_one(1, 2).get(30) == 3


def median_call_s(adders, count: int = 300) -> float:
    times = []
    for _ in range(count):
        at = time.perf_counter()
        adders.add.call_one(1, 2).get(30)
        times.append(time.perf_counter() - at)
    return statistics.median(times)


@pytest.mark.slow
@pytest.mark.nightly
def test_calls_take_no_longer_while_strangers_try(offered, goal):
    """Row 21: four hundred of them, who say half a greeting."""
    address, _ = offered
    adders = attached(address)
    median_call_s(adders)
    before = median_call_s(adders)
    with flood(address, HALF_A_GREETING):
        during = median_call_s(adders)
    goal("calls while strangers try: times as long", during / before, 2.0)


@pytest.mark.slow
def test_a_stranger_s_frame_of_8_gb_is_not_taken(workers):
    [address], [process] = workers(1)
    before = rss_bytes(process.pid)
    command = [sys.executable, "-c", HUGE_FRAME, port_of(address)]
    sent = int(subprocess.check_output(command, text=True))
    assert sent < 16 << 20  # what the operating system itself takes
    assert rss_bytes(process.pid) < before + (16 << 20)
    assert attached(address).add.call_one(1, 2).get(30) == 3


def test_a_silent_connection_is_cut_off_within_seconds(workers):
    [address], _ = workers(1)
    with socket.create_connection(("127.0.0.1", int(port_of(address))), 10) as silent:
        at = time.monotonic()
        while silent.recv(100):
            """The greeting of ZeroMQ."""
        assert time.monotonic() - at < 5
    assert wire.LONGEST_FRAME <= 1 << 20


@pytest.mark.slow
def test_large_values_pass_between_hosts(workers):
    addresses, _ = workers(2)
    adders = attach_to_workers(workers=addresses).spawn_procs().spawn("adders", Adder)
    large = os.urandom(8 << 20) * 4
    first, second = (adders.slice(hosts=host) for host in range(2))
    assert first.add.call_one(large, b"end").get(60) == large + b"end"
    mine = second.add.call(large, b"end")
    assert [len(each) for each in mine.get(60).values()] == [len(large) + 3]
