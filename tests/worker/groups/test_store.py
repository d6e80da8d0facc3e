"""`torch.distributed.Store` as ranks have it: the mesh's, which its owner keeps."""

import os
import signal

import pytest

from monarch_nb.control.hangs.collectives import Xray
from tests import inside
from tests.control.conftest import WITHIN_S
from tests.support import eventually
from tests.worker.groups.test_default_group import errors, ok

HEAD = """
import datetime, threading, time, torch
import torch.distributed as dist
dist.barrier()
store = dist.distributed_c10d._get_default_store()
"""
CALLS = """
if rank == 0:
    store.set('a', 'one'); store.set('n', '5')
assert store.get('a') == b'one'
store.add('ranks', 1); store.wait(['ranks', 'a'])
dist.barrier(); assert store.add('ranks', 0) == 2
assert store.check(['a', 'n']) and not store.check(['a', 'never'])
under = dist.PrefixStore(f'rank-{rank}', store)
assert under.compare_set('k', '', 'x') == b'x' and under.compare_set('k', 'y', 'z') == b'x'
under.append('k', 'yz'); assert under.get('k') == b'xyz'
under.multi_set(['p', 'q'], ['1', '2']); assert under.multi_get(['q', 'p']) == [b'2', b'1']
assert under.has_extended_api() and under.num_keys() > 4
assert under.clone().get('k') == b'xyz'
assert under.delete_key('k') and not under.delete_key('k') and not under.check(['k'])
"""


@pytest.fixture
def two(mesh):
    return mesh(2)


def test_every_call(two):
    ok(two, HEAD + CALLS)


def test_in_threads_of_its_own(two):
    ok(
        two,
        HEAD
        + """
got = []
for n in range(8):
    threading.Thread(target=lambda n=n: got.append(store.get(f'key-{n}'))).start()
time.sleep(0.2); assert not got
dist.barrier()  # or the other's sleep is over before
store.multi_set([f'key-{n}' for n in range(8)], list('01234567')) if rank else None
while len(got) < 8: time.sleep(0.01)
""",
    )


def test_a_time_out_names_the_keys(two):
    ok(
        two,
        HEAD
        + """
begin = time.monotonic()
try: store.wait(['never', 'a'], datetime.timedelta(seconds=0.3))
except dist.DistStoreError as error:
    assert "wait timeout after 0:00:00.300000" in str(error) and "never" in str(error)
assert 0.25 < time.monotonic() - begin < 3
store.set_timeout(datetime.timedelta(seconds=0.2))
try: store.get('never'); assert False
except dist.DistStoreError: pass
""",
    )


def test_what_is_too_large_is_said_before_it_is_sent(two):
    ok(two, HEAD + """
try: store.set('a', 'x' * (1 << 20) + 'y'); assert False
except ValueError as error: assert 'by a collective' in str(error)
store.set('a', 'x' * (1 << 20)); assert len(store.get('a')) == 1 << 20
""")  # fmt: skip


@pytest.mark.fault
def test_the_death_of_a_member_ends_a_wait(two):
    ok(two, HEAD)
    run = two.start("store.get('never')", gpus=0)
    xray = Xray(two.client.proc, two.client.supervision)
    eventually(lambda: xray.places(two.procs, [0])[0].what == "store.wait", 5)
    os.kill(inside.pids(two.procs)[1], signal.SIGKILL)
    assert run.wait(WITHIN_S)
    assert "store.wait: rank 1 has died. Type: %mesh heal" in errors(run)[0]


def test_a_fork_says_that_it_is_none(two):
    ok(two, HEAD + """
import os
reader, writer = os.pipe()
if os.fork() == 0:
    try: store.get('a')
    except BaseException as error: os.write(writer, str(error).encode())
    os._exit(0)
os.wait(); assert b'forked from a member' in os.read(reader, 999)
""")  # fmt: skip


def test_a_rank_keeps_the_keys_of_its_own_mesh(two):
    """Whoever owns a mesh does: here a rank, and not the controller."""
    code = """
from monarch_nb import Actor, endpoint, this_host
class Grouped(Actor):
    @endpoint
    def total(self):
        import torch, torch.distributed as dist
        x = torch.ones(1); dist.all_reduce(x); return x.item()
inner = this_host().spawn_procs(per_host={"gpus": 2})
assert list(inner.spawn("grouped", Grouped).total.call().get(30).values()) == [2.0, 2.0]
inner.stop().get(20)
"""
    ok(two, code, gpus=1)
