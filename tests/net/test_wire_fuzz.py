"""Row 21: noise at the port of a host that is in use, made of what a real client has said.

The strangers are processes of another user. They say what was recorded when a client joined and its
session began, changed a little, cut, or with a pickle in it that leaves a trace where it is loaded.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import textwrap
import time

import pytest

from monarch_nb import Actor, attach_to_workers, endpoint
from tests.net.forwarder import forwarder, free_port
from tests.net.test_floods import AS_ANOTHER_USER
from tests.security.test_strangers import trap  # noqa: F401
from tests.source import ROOT
from tests.support import eventually, open_fds, rss_bytes

FUZZED_S = 5.0
CALLS = 200
IMPORTS = """
import json, random, time
from tests.fuzz.mutations import changed_bytes
"""  # of files that another user may not be allowed to read
NOISE = (
    IMPORTS
    + AS_ANOTHER_USER
    + textwrap.dedent("""
    told = json.load(sys.stdin)
    rng, tries = random.Random(told["seed"]), 0
    over = time.monotonic() + told["seconds"]
    print("begun", flush=True)
    while time.monotonic() < over:
        data = bytes.fromhex(rng.choice(told["said"]))
        if rng.random() < 0.8:
            data = changed_bytes(data[:rng.randint(1, len(data))], rng)
        if rng.random() < 0.3:
            data += bytes.fromhex(told["trap"])
        with socket.socket() as out:
            out.settimeout(0.02)
            try:
                out.connect(("127.0.0.1", told["port"]))
                while data:
                    size = rng.choice([1, 64, 4096])
                    out.sendall(data[:size])
                    data = data[size:]
                out.recv(1)
            except OSError:
                pass
        tries += 1
        time.sleep(0.002)  # all of a processor would be another test
    print(tries)
""")
)


class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value


@pytest.fixture
def joined(workers):
    """A host that is in use: an actor there, its process, its port, what its client has said."""
    with forwarder(free_port()) as between:
        address = f"tcp://127.0.0.1:{between.port}@tcp://127.0.0.1:{between.to}"
        _, [process] = workers(1, address=address)
        hosts = attach_to_workers(workers=[f"tcp://127.0.0.1:{between.port}"])
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call_one(1).get(30) == 1
        yield echo, process.pid, between.to, [bytes(each) for each in between.said if each]


@contextlib.contextmanager
def noise(**told):
    command = [sys.executable, "-c", NOISE]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT) as strangers:
        strangers.stdin.write(json.dumps(told))
        strangers.stdin.close()
        assert strangers.stdout.readline() == "begun\n"
        yield strangers


def median_call_s(echo, count=CALLS):
    times = []
    for number in range(count):
        at = time.perf_counter()
        assert echo.echo.call_one(number).get(30) == number
        times.append(time.perf_counter() - at)
    return statistics.median(times)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_noise_at_a_port_in_use_reaches_nobody(joined, trap, goal, seed):  # noqa: F811
    echo, pid, port, said = joined
    assert any(each.startswith(b"\xff") for each in said)  # over CURVE
    assert any(each.startswith(b"MNB2") for each in said)  # a session
    median_call_s(echo)
    before_s, before_bytes, before_fds = median_call_s(echo), rss_bytes(pid), len(open_fds(pid))
    told = {"said": [each.hex() for each in said], "trap": trap.hex(), "port": port}
    with noise(**told, seed=seed, seconds=FUZZED_S) as strangers:
        during = []
        while strangers.poll() is None:
            during.append(median_call_s(echo))
        tries = int(strangers.stdout.read())
    assert tries > 100
    slower = statistics.median(during) / before_s
    goal("noise at the port: calls take times as long", slower, 2.0)
    grown_mb = (rss_bytes(pid) - before_bytes) / (1 << 20)
    goal("noise at the port: MB that the host has grown by", grown_mb, 32.0)
    eventually(lambda: len(open_fds(pid)) <= before_fds + 2, 40.0, "they are cut off")
    assert echo.echo.call_one("well").get(10) == "well"
