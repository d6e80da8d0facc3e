"""Leases of shared memory, between real processes: what senders and holders may expect."""

import contextlib
import errno
import gc
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.wire.leases import HANDLE_BYTES, Handle
from monarch_nb.data.attached import attach
from monarch_nb.data.shared import Arena
from monarch_nb.errors import BrokenError, ClosedError, LimitError, RemoteProtocolError
from tests.source import ROOT
from tests.support import open_fds

MB = 1 << 20
ANNA, BORIS = 11, 12  # process ids of holders
nothing = lambda: None

PEER = """
import gc, json, os, resource, sys
from monarch_nb.data.attached import attach
from monarch_nb.core.wire.leases import Handle
from monarch_nb.data.shared import Arena
arena, held, released = Arena(1 << 28), {}, []

def take(name, handle):
    held[name] = attach(Handle.unpack(bytes.fromhex(handle)), lambda: released.append(name))

def lend(*buffers):
    return [handle.pack().hex() for handle in arena.lend([*map(memoryview, buffers)], [1])]

def in_fork(function):
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, json.dumps(function()).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    return json.load(open(reader))

def memfds():
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum("memfd:" in os.readlink(link) for link in links if os.path.islink(link))

for line in sys.stdin:
    try:
        answer = eval(json.loads(line))
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
"""


class Peer:
    """Another process. Call it with an expression that it evaluates."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", PEER]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def __call__(self, expression):
        self.process.stdin.write(json.dumps(expression) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def take(self, name, handle):
        return self(f"take({name!r}, {handle.pack().hex()!r})")

    def kill(self):
        with self.process:  # closes the pipes and waits
            self.process.kill()


@pytest.fixture
def peers() -> Iterator[Callable[[], Peer]]:
    with contextlib.ExitStack() as stack:

        def start() -> Peer:
            peer = Peer()
            stack.callback(peer.kill)
            return peer

        yield start


@pytest.fixture
def arena() -> Iterator[Arena]:
    before = open_fds()
    arena = Arena(256 * MB)
    yield arena
    arena.close()
    gc.collect()
    assert open_fds().keys() == before.keys()
    assert not [name for name in os.listdir("/dev/shm") if "monarch" in name]


def lend(arena: Arena, data: bytes, *holders: int) -> Handle:
    (handle,) = arena.lend([memoryview(data)], holders or (ANNA,))
    return handle


@given(st.binary(max_size=40))
def test_bytes_are_a_handle_or_a_protocol_error(data):
    try:
        handle = Handle.unpack(data)
    except RemoteProtocolError:
        return
    assert handle.pack() == data


@pytest.mark.parametrize("change", [{"pid": 0}, {"size": 0}, {"offset": 1}])
def test_a_handle_packs_to_a_fixed_size_unless_it_is_impossible(change):
    handle = Handle(pid=4_000_000_000, fd=7, segment=1 << 40, offset=8192, size=1 << 50)
    assert len(handle.pack()) == HANDLE_BYTES
    assert Handle.unpack(memoryview(handle.pack())) == handle
    with pytest.raises(RemoteProtocolError):
        Handle.unpack(handle._replace(**change).pack())


def test_round_trip_to_another_process(arena, peers):
    values = np.arange(300_001, dtype=np.float64).reshape(1, -1)
    peer = peers()
    peer.take("x", lend(arena, values))
    assert peer("held['x'].hex()") == values.tobytes().hex()
    assert peer("[held['x'].readonly, held['x'].format]") == [False, "B"]


def test_many_buffers_keep_their_order_and_share_segments(arena):
    buffers = [os.urandom(size) for size in (MB, 5, 70 * MB, MB + 1, 4096, 2 * MB)]
    for _ in range(2):  # new segments, then warm ones
        handles = arena.lend([memoryview(buffer) for buffer in buffers], [ANNA])
        assert [bytes(attach(handle, nothing)) for handle in handles] == buffers
        segments = [handle.segment for handle in handles]
        assert len(set(segments)) == 3  # the two before the large one, the large one, the rest
        for segment in segments:
            assert arena.statistics()["leased_bytes"] > 0
            arena.release(segment, ANNA)  # once per handle
        assert arena.statistics()["leased_bytes"] == 0


def test_nothing_to_lend_and_nobody_to_lend_to(arena):
    assert arena.lend([], [ANNA]) == []
    with pytest.raises(ValueError, match="holders"):
        arena.lend([memoryview(b"x")], [])
    with pytest.raises(ValueError, match="empty"):
        arena.lend([memoryview(b"")], [ANNA])
    with pytest.raises(TypeError, match="contiguous"):
        arena.lend([memoryview(bytes(MB))[::2]], [ANNA])


def test_what_one_holder_writes_nobody_else_sees(arena, peers):
    data = bytearray(os.urandom(MB))
    before = bytes(data)
    anna, boris = peers(), peers()
    handle = lend(arena, data, ANNA, BORIS)
    anna.take("x", handle)
    boris.take("x", handle)
    anna(f"held['x'].__setitem__(slice(None), bytes({MB}))")
    assert anna("any(held['x'])") is False
    data[:] = b"s" * MB  # nor does the holder see what the sender does to its own copy
    assert boris("held['x'].hex()") == before.hex()
    assert bytes(attach(handle, nothing)) == before


def test_one_copy_serves_all_holders(arena):
    lend(arena, bytes(4 * MB), *range(1, 65))
    assert arena.statistics() == {"segments": 1, "bytes": 4 * MB, "leased_bytes": 4 * MB}


def test_a_segment_with_one_lease_left_is_not_written(arena):
    first = lend(arena, b"a" * MB, ANNA, BORIS)
    view = attach(first, nothing)  # not one page of it is touched yet
    arena.release(first.segment, ANNA)
    arena.release(first.segment, ANNA)  # unknown by now
    assert lend(arena, b"b" * MB).segment != first.segment
    assert bytes(view) == b"a" * MB
    arena.release(first.segment, BORIS)
    assert lend(arena, b"c" * MB).segment == first.segment


def test_a_hundred_sends_use_one_segment(arena, peers):
    peer, seen = peers(), set()
    for turn in range(100):
        handle = lend(arena, bytes([turn]) * (2 * MB))
        peer.take("x", handle)
        assert peer("(held['x'][0], held['x'][-1])") == [turn, turn]
        assert peer("(held.clear(), gc.collect(), len(released))")[2] == turn + 1
        arena.release(handle.segment, ANNA)
        seen.add((handle.segment, handle.fd))
    assert len(seen) == 1
    assert arena.statistics() == {"segments": 1, "bytes": 2 * MB, "leased_bytes": 0}
    assert peer("memfds()") == 0  # a holder keeps no descriptor


def test_released_once_when_the_last_view_is_gone(arena):
    handle = lend(arena, os.urandom(MB))
    released: list[bool] = []
    view = attach(handle, lambda: released.append(is_mapped(handle)))
    part = view[10:20].cast("b")
    del view
    gc.collect()
    assert not released
    assert is_mapped(handle)
    del part
    assert released == [False]  # it was unmapped by then


def is_mapped(handle: Handle) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any("memfd:" in line and f" {handle.segment} " in line for line in lines)


def test_arrays_unpickled_from_a_lease_keep_it(arena):
    source = np.arange(MB // 8)
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(source, protocol=5, buffer_callback=buffers.append)
    (handle,) = arena.lend([buffer.raw() for buffer in buffers], [ANNA])
    released: list[int] = []
    array = pickle.loads(payload, buffers=[attach(handle, lambda: released.append(1))])
    rows = array.reshape(64, -1)[3:]
    del array
    gc.collect()
    rows += 1  # writable
    assert not released
    assert rows[0, 0] == source[3 * rows.shape[1]] + 1
    del rows
    assert released == [1]


@pytest.mark.fault
def test_leases_of_a_killed_holder_are_forgotten(arena, peers):
    peer = peers()
    handle = lend(arena, bytes(MB), ANNA, BORIS)
    peer.take("x", handle)
    peer.kill()
    arena.forget(ANNA)
    assert arena.statistics()["leased_bytes"] == MB
    arena.release(handle.segment, BORIS)
    assert arena.statistics()["leased_bytes"] == 0
    assert lend(arena, bytes(MB), ANNA).segment == handle.segment
    assert arena.statistics()["leased_bytes"] == 0  # the dead get no leases


def test_release_in_a_finalizer_never_waits_for_the_lock(arena):
    handles = [lend(arena, bytes(MB), holder) for holder in (ANNA, BORIS)]
    with arena._lock:  # as if the garbage collector ran while this thread is inside the arena
        arena.release(handles[0].segment, ANNA)
        arena.forget(BORIS)
    assert arena.statistics()["leased_bytes"] == 0


def test_threads_lend_and_release_at_once(arena):
    wrong: list[int] = []

    def exchange(holder: int) -> None:
        for turn in range(40):
            data = os.urandom(MB + turn)
            handle = lend(arena, data, holder)
            if bytes(attach(handle, partial(arena.release, handle.segment, holder))) != data:
                wrong.append(turn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(exchange, range(1, 5)))
    assert not wrong
    assert arena.statistics()["leased_bytes"] == 0
    assert arena.statistics()["segments"] <= 8


def test_over_the_limit_nothing_is_lent(arena):
    arena.limit_bytes = 32 * MB
    first = lend(arena, bytes(20 * MB))
    with pytest.raises(LimitError, match="shared memory full: need 13631488 bytes, free 12582912"):
        lend(arena, bytes(13 * MB))
    with pytest.raises(LimitError) as caught:
        arena.lend([memoryview(bytes(10 * MB))] * 10, [ANNA])
    assert (caught.value.limit, caught.value.size) == (12 * MB, 100 * MB)
    assert arena.statistics()["segments"] == 1
    arena.release(first.segment, ANNA)
    lend(arena, bytes(13 * MB))
    assert arena.statistics()["bytes"] == 13 * MB


def test_idle_memory_is_kept_up_to_half_the_limit_and_makes_room(arena):
    arena.limit_bytes = 32 * MB
    handles = [lend(arena, bytes(7 * MB)) for _ in range(4)]
    for handle in handles:
        arena.release(handle.segment, ANNA)
    assert sum("memfd:" in target for target in open_fds().values()) == 2  # freed at once
    assert arena.statistics() == {"segments": 2, "bytes": 14 * MB, "leased_bytes": 0}
    kept = {handle.segment for handle in handles[2:]}
    assert {lend(arena, bytes(7 * MB)).segment, lend(arena, bytes(6 * MB)).segment} == kept
    arena.forget(ANNA)
    assert lend(arena, bytes(MB), BORIS).segment not in kept  # too large for that
    lend(arena, bytes(26 * MB), BORIS)
    assert arena.statistics() == {"segments": 2, "bytes": 27 * MB, "leased_bytes": 27 * MB}


@pytest.mark.fault
def test_a_file_size_limit_is_a_limit_error_and_no_signal(peers):
    peer = peers()
    peer("resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))")
    assert peer("lend(bytes(1 << 20))").startswith("LimitError: shared memory full: need")
    assert peer("memfds()") == 0
    assert len(peer("lend(bytes(1 << 18))")) == 1


def test_a_full_system_is_a_limit_error(arena, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(LimitError):
            lend(arena, bytes(MB))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda _: "MemFree: 9 kB\nMemAvailable: 1024 kB\n")
        with pytest.raises(LimitError, match="need 1048576 bytes, free 917504"):
            lend(arena, bytes(MB))
    assert arena.statistics()["segments"] == 0


@pytest.mark.parametrize("warm", [False, True])
def test_an_interrupted_copy_leaves_nothing(arena, monkeypatch, warm):
    if warm:
        arena.release(lend(arena, bytearray(MB)).segment, ANNA)
    copier = (np, "copyto") if warm else (os, "pwrite")
    with monkeypatch.context() as patch:
        patch.setattr(*copier, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            lend(arena, bytearray(MB))
    assert arena.statistics()["segments"] == 0


def test_closed_while_lending(arena, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *args: (arena.close(), write(*args))[1])
    for _ in range(2):
        with pytest.raises(ClosedError):
            lend(arena, bytes(MB))
    assert arena.statistics()["segments"] == 0


def test_close_spares_those_who_have_attached(arena):
    handle = lend(arena, b"x" * MB)
    view = attach(handle, lambda: arena.release(handle.segment, ANNA))
    arena.close()
    assert bytes(view) == b"x" * MB
    with pytest.raises(BrokenError, match=str(handle.pid)):
        attach(handle, nothing)


@pytest.mark.fault
def test_the_owner_dies(peers):
    owner = peers()
    one, two = (Handle.unpack(bytes.fromhex(h)) for h in owner("lend(b'x' * 2**20, b'y')"))
    view = attach(one, nothing)
    owner.kill()
    assert bytes(view) == b"x" * MB
    with pytest.raises(BrokenError, match=f"process {two.pid}"):
        attach(two, nothing)


@pytest.mark.parametrize("change", [{"segment": 1}, {"size": 2 * MB}, {"offset": MB}, {"fd": 0}])
def test_another_file_or_a_size_beyond_it_is_not_mapped(arena, change):
    handle = lend(arena, bytes(MB))
    with pytest.raises(BrokenError):
        attach(handle._replace(**change), nothing)


def test_a_forked_child_of_the_owner_drops_the_arena_and_the_parent_keeps_it(peers):
    owner = peers()
    handle = Handle.unpack(bytes.fromhex(owner("lend(b'x' * 2**20)")[0]))
    child = owner(
        "in_fork(lambda: (arena._lock.acquire(), arena.abandon_after_fork(), memfds(),"
        " arena.statistics()['segments'], arena.release(1, 1)))"
    )
    assert child == [True, None, 0, 0, None]
    assert owner("memfds()") == 1
    assert bytes(attach(handle, nothing)) == b"x" * MB
    assert len(owner("lend(b'y' * 2**20)")) == 1


def test_a_holder_that_forks_keeps_its_lease_and_its_child_releases_nothing(arena, peers):
    peer = peers()
    peer.take("before", lend(arena, bytes(MB)))
    assert peer("in_fork(lambda: (held.clear(), gc.collect(), released)[2])") == []
    peer.take("after", lend(arena, bytes(MB)))
    assert peer("(held.clear(), gc.collect(), released)[2]") == ["after"]
