"""Rule 2: what an agent has to know comes by its standard input; no key is on a command line or in
an environment."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from monarch_nb import attach_to_workers, shutdown_context
from monarch_nb.control.client import client
from monarch_nb.host.launch import AgentBoot
from monarch_nb.net import keys, private
from monarch_nb.testing.processes import read
from tests.faults.actors import Worker
from tests.support import session_processes


def test_the_agent_is_told_by_its_standard_input(mesh):
    proc = client().proc
    command = read(mesh.agent, "cmdline").split(b"\0")[:-1]
    assert command[1:] == [b"-P", b"-m", b"monarch_nb.host.agent"]
    secrets = [str(proc.links.run_dir), f"{proc.id}", f"{proc.id:x}", f"{proc.agent}"]
    for name, pid in mesh.all.items():
        said = read(pid, "cmdline") + (read(pid, "environ") if name != "client" else b"")
        assert not [each for each in secrets if each.encode() in said], name
    assert os.readlink(f"/proc/{mesh.agent}/fd/0").startswith("pipe:")


def test_the_boot_record_survives_its_line_and_refuses_others():
    boot = AgentBoot(run_dir="/tmp/x", agent=1, controller=2, config={"detect_s": 1.0})
    assert AgentBoot.from_line(boot.to_line()) == boot
    for line in (b"", b"{}", b"[1]", b'{"run_dir": 1, "unknown": 2}', b"\xff\xfe"):
        with pytest.raises((ValueError, TypeError)):
            AgentBoot.from_line(line)


@pytest.mark.slow
def test_no_key_is_seen_in_any_process(tmp_path, monkeypatch):
    """Two hosts: the worker's and the client's processes know keys, and nobody can see them."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    program = textwrap.dedent("""
        import sys, threading
        from monarch_nb import start_worker_loop_forever
        print(start_worker_loop_forever(address="tcp://127.0.0.1:*").get(), flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        address = worker.stdout.readline().strip()
        hosts = attach_to_workers(workers=[address])
        procs = hosts.spawn_procs(per_host={"gpus": 2})
        assert len(procs.spawn("w", Worker).add.call().get(timeout=60)) == 2
        pair = keys.identity(tmp_path / "keys")
        pids = session_processes() | {os.getpid()}
        assert len(pids) >= 5
        for pid in pids:
            seen = read(pid, "cmdline") + read(pid, "environ")
            assert pair.secret not in seen, pid
            assert pair.public not in seen, pid
        record = json.loads(private.read_private(tmp_path / "keys" / keys.IDENTITY))
        assert set(record) == {"public", "secret"}
        shutdown_context().get(timeout=20)
        worker.stdin.close()
        worker.wait(20)


def test_who_makes_an_identity_at_the_same_time_gets_the_same(tmp_path):
    """Threads here: processes of hosts that share a folder may have the same number as well."""
    together = threading.Barrier(8)

    def made(folder):
        together.wait(10)
        return keys.identity(folder).public

    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            folder = tmp_path / str(number)
            assert len(set(threads.map(made, [folder] * 8))) == 1
            assert [each.name for each in folder.iterdir()] == [keys.IDENTITY]
