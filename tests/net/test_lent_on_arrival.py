"""Large values from another host: one copy for all ranks there, given back when they are done."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from monarch_nb import Actor, attach_to_workers, endpoint
from monarch_nb.errors import MeshError

SIZE = 8 << 20


class Holder(Actor):
    @endpoint
    def hold(self, value):
        self.held = value
        memory = Path("/proc/self/maps").read_text()
        return {int(inode) for inode in re.findall(r" (\d+) +/memfd:monarch_nb", memory)}

    @endpoint
    def let_go(self):
        self.held = None
        return os.getpid()

    @endpoint
    def change(self, array):
        before, array[0] = int(array[0]), self.held[0] + 1
        return before

    @endpoint
    def length(self, value):
        return len(value)


def segments(pid: int) -> int:
    """How many pieces of shared memory a process has."""
    folder = Path(f"/proc/{pid}/fd")
    links = [os.readlink(each) for each in folder.iterdir() if each.is_symlink()]
    return sum(link.startswith("/memfd:monarch_nb") for link in links)


@pytest.fixture
def host(workers):
    """Two ranks of another host, and the process there that receives for them."""
    [address], [process] = workers(1)
    procs = attach_to_workers(workers=[address]).spawn_procs(per_host={"gpus": 2})
    return procs.spawn("holders", Holder), process.pid


def test_it_is_written_once_and_each_rank_changes_its_own(host):
    holders, pid = host
    first, second = holders.hold.call(np.full(SIZE, 5, np.uint8)).get(30).values()
    assert first & second, "both have mapped the same memory"
    assert segments(pid) == 1
    changed = holders.change.call(np.full(SIZE, 9, np.uint8)).get(30)
    assert list(changed.values()) == [9, 9]


@pytest.mark.parametrize("value", [bytes(SIZE), "é" * SIZE, np.zeros(SIZE, np.uint8)])
def test_memory_is_used_again(host, value):
    holders, pid = host
    for _ in range(6):
        assert set(holders.length.call(value).get(30).values()) == {SIZE}
    assert segments(pid) <= 2


def test_the_memory_of_ranks_that_end_comes_back(host):
    holders, pid = host
    one = holders.slice(gpus=1)
    for _ in range(6):
        doomed = one.let_go.call_one().get(30)
        one.hold.call_one(np.zeros(SIZE, np.uint8)).get(30)
        os.kill(doomed, signal.SIGKILL)
        with pytest.raises(MeshError):
            one.let_go.call_one().get(30)
        holders.heal()
    assert segments(pid) <= 3
