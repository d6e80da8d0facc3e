"""`%mesh keep` of meshes on hosts that a program has got itself: refused in a line, with all that
runs there as it was; on this host such a mesh is kept as any other."""

import os
import signal

import psutil
import pytest

from monarch_nb.control.keeping import kept_record
from tests import support
from tests.kernel.client import KernelClient
from tests.kernel.test_kept import END_S, home, kill, ranks_of

__all__ = ["home"]

pytestmark = pytest.mark.slow

PROCESSES = """from monarch_nb.job import ProcessJob
hosts = ProcessJob({"trainers": 2}).state(cached_path=None).trainers"""
STORE = """from monarch_nb.job import StoreJob
class Store(dict):
    set, get = dict.__setitem__, dict.__getitem__
job = StoreJob.from_store(Store(), rank=0, local_rank=0, world_size=1, local_world_size=1)
hosts = job.state().monarch_worker"""
WORKERS = """import subprocess, sys
from monarch_nb import attach_to_workers
text = f"from monarch_nb import run_worker_loop_forever as run; run(address={address!r})"
worker = subprocess.Popen([sys.executable, "-c", text])
hosts = attach_to_workers(workers=[address])"""
LOCAL = """from monarch_nb.job import LocalJob
hosts = LocalJob().state(cached_path=None).hosts"""
SPAWN = """mine = hosts.spawn_procs(per_host={"gpus": 1}, name="mine")
mine.initialized.get(60)"""
REFUSED = (
    "mine cannot be kept: this program has got its hosts itself, and what runs there ends with it. "
    "Get them with %mesh up --on ENGINE ... --keep 8h"
)


@pytest.mark.parametrize("hosts", [PROCESSES, STORE, WORKERS])
def test_hosts_that_a_program_has_got_are_not_kept_which_is_said(hosts, tmp_path):
    with KernelClient("monarch") as kernel:
        kernel.ok(f"address = 'ipc://{tmp_path}/host'")
        kernel.ok(f"{hosts}\n{SPAWN}", timeout_s=60)
        kernel.ok("%mesh use mine")
        pids = ranks_of(kernel)
        assert kernel.run("%mesh keep mine 1h").error == REFUSED
        assert ranks_of(kernel) == pids
        assert not kept_record.all_records()
        started = psutil.Process(kernel.manager.provisioner.pid).children(recursive=True)
        kill(kernel)
    support.eventually(lambda: not any(map(support.is_running, pids)), END_S, "the ranks")
    for each in started:  # a worker waits for the next client
        if each.is_running():
            os.kill(each.pid, signal.SIGTERM)


def test_a_mesh_that_a_program_has_on_this_host_is_kept():
    with KernelClient("monarch") as kernel:
        kernel.ok(f"{LOCAL}\n{SPAWN}", timeout_s=60)
        kernel.ok("%mesh use mine")
        pids = ranks_of(kernel)
        assert "mine goes on without the kernel for 60 min" in kernel.ok("%mesh keep 1h").text()
        kill(kernel)
    with KernelClient("monarch") as kernel:
        assert "mine (1 rank (gpus=1)) is back" in kernel.ok("%mesh attach mine").text()
        assert ranks_of(kernel) == pids
        kernel.ok("%mesh down")
