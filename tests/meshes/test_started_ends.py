"""Started ranks and the ends of others: a deadline, the owner, a host that was attached."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_nb import (
    BootstrapCommand,
    RankExited,
    attach_to_workers,
    shutdown_context,
    this_host,
)
from tests.actors.cast import Process, over
from tests.source import ROOT
from tests.support import descendants, eventually, is_running


def test_a_program_that_never_becomes_a_rank(failures, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_START_S", "0.5")
    mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("sleep", args=("1000",)))
    with pytest.raises(RankExited, match="`sleep 1000` was started .* never became a rank"):
        mesh.initialized.get(timeout=20)
    eventually(lambda: failures)
    assert len(failures) == 1
    shutdown_context().get()


OWNER = """
import threading
from monarch_nb import BootstrapCommand, default_bootstrap_cmd, this_host
from tests.actors.cast import over
python = default_bootstrap_cmd()
line = f"{python.program} {' '.join(python.args)}; exit $?"
meshes = [
    this_host().spawn_procs({"gpus": 2}, bootstrap_command=command)
    for command in (BootstrapCommand("env", args=(python.program, *python.args)),
                    BootstrapCommand("sh", args=("-c", line)))
]
print(*(pid for mesh in meshes for pid in over(mesh, "pid")), flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.fault
def test_nothing_survives_the_owner():
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            pids = [int(text) for text in owner.stdout.readline().split()]
            family = descendants(owner.pid)
            assert len(pids) == 4
            assert set(pids) < family
        finally:
            owner.send_signal(signal.SIGKILL)
    eventually(lambda: not any(map(is_running, family)), 5.0)


WORKER = """
import threading
from monarch_nb import start_worker_loop_forever
print(start_worker_loop_forever(address="tcp://127.0.0.1:*").get(), flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.fault
def test_attached_hosts_start_them_too(other_python, failures, monkeypatch, tmp_path):
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            address = worker.stdout.readline().strip()
            hosts = attach_to_workers(workers=[address]).with_python_executable(other_python)
            mesh = hosts.slice(hosts=0).spawn_procs({"gpus": 2})
            pids = mesh.spawn("process", Process).pid.call().get(timeout=40).values()
            lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
            assert [line.split(b"\0")[0].decode() for line in lines] == [other_python] * 2
            assert set(pids) < descendants(worker.pid)
            assert descendants(os.getpid()) == descendants(worker.pid) | {worker.pid}
            os.kill(pids[1], signal.SIGKILL)
            eventually(lambda: failures)
            mesh.heal()
            assert over(mesh, "pid")[0] == pids[0]
            nowhere = hosts.with_python_executable("/no/python").spawn_procs({"gpus": 2})
            with pytest.raises(RankExited, match="'/no/python': on this host it is not there"):
                nowhere.initialized.get(timeout=20)
            eventually(lambda: len(failures) == 2)
            assert [each.crashed_ranks for each in failures] == [[1], [0, 1]]  # told as one
            shutdown_context().get()
        finally:
            worker.terminate()
