"""A program that torchrun has started on each host makes a mesh of these hosts."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from monarch_nb.job import StoreJob
from monarch_nb.net.wire import free_port
from tests.source import ROOT
from tests.support import eventually, is_running

PROGRAM = """
import os, sys
import torch.distributed as dist
from datetime import timedelta
from monarch_nb.job import StoreJob

address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))
job = StoreJob.from_store(store, transport=sys.argv[1])
if job is None:
    store.get("over")
else:
    hosts = job.state().monarch_worker
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    print("sizes", procs.sizes, flush=True)
    print("zygotes", *procs.execute(os.getppid).values(), flush=True)
    job.kill()
    again = job.state().monarch_worker.spawn_procs()
    print("again", len(list(again.execute(os.getpid).values())), flush=True)
    job.state().monarch_worker.shutdown().get(20)
    job.kill()
    store.set("over", b"1")
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_hosts_of_torchrun_are_a_mesh(tmp_path, transport):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    port = free_port()
    launchers = [launcher(tmp_path, node, port, transport) for node in range(2)]
    said = [each.communicate(timeout=100)[0] for each in launchers]
    assert [each.returncode for each in launchers] == [0, 0], said
    assert "sizes {'hosts': 2, 'gpus': 2}" in said[0]
    assert "again 2\n" in said[0]
    [zygotes] = re.findall(r"zygotes (.*)", said[0])
    assert len(set(zygotes.split())) == 2
    eventually(lambda: not any(is_running(int(pid)) for pid in zygotes.split()))


def launcher(folder, node, port, transport):
    words = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2"]
    words += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words, "program.py", transport],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Pairs(dict[str, bytes]):
    """A store for one process."""

    def set(self, key, value):
        self[key] = value

    def get(self, key):
        return self[key]


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_what_torchrun_has_not_said_is_named(monkeypatch, missing):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv(missing)
    with pytest.raises(RuntimeError, match=f"needs {missing} in the environment"):
        StoreJob.from_store(Pairs())


def test_another_rank_than_the_first_of_a_host_offers_nothing():
    store = Pairs()
    place = {"rank": 3, "local_rank": 1, "world_size": 4, "local_world_size": 2}
    assert StoreJob.from_store(store, **place) is None
    assert not store


def test_what_cannot_be_is_refused():
    place = {"rank": 0, "local_rank": 0, "world_size": 3, "local_world_size": 2}
    with pytest.raises(ValueError, match="divisible"):
        StoreJob.from_store(Pairs(), **place)
    with pytest.raises(ValueError, match="divisible"):
        StoreJob.from_store(Pairs(), **{**place, "local_world_size": 0})
    place["world_size"] = 2
    with pytest.raises(ValueError, match="unsupported transport 'carrier'"):
        StoreJob.from_store(Pairs(), **place, transport="carrier")
    with pytest.raises(RuntimeError, match="needs MASTER_ADDR"):
        StoreJob.from_store(Pairs(), **place, transport="tcp")
    with pytest.raises(RuntimeError, match="cannot run a client script"):
        StoreJob([]).apply(client_script="train.py")
