"""Registered memory: what others can copy, how far, and until when."""

import fcntl
import gc
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from monarch_nb.data import onesided
from monarch_nb.data.memory import memory_of
from monarch_nb.data.onesided import Dropped, Outside, Unreachable
from monarch_nb.data.registry import ENTRY, Place, Registry, lock, offset_of
from monarch_nb.errors import ClosedError, RemoteProtocolError
from tests.support import eventually, open_fds

OWNER = 7

PEER = """
import sys
from monarch_nb.data import onesided
from monarch_nb.data.memory import memory_of
from monarch_nb.data.registry import Place
for line in sys.stdin:
    *fields, offset, size = map(int, line.split())
    room = bytearray(size)
    address = memory_of(memoryview(room)).address
    try:
        onesided.copy(Place(*fields), address, offset, size, write=False)
        print(room.hex(), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


class Peer:
    """Another process that reads from this one."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self, place, offset, size):
        self.process.stdin.write(" ".join(map(str, (*place, offset, size))) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def peer():
    made = Peer()
    yield made
    made.process.stdin.close()
    made.process.wait(10)
    made.process.stdout.close()


@pytest.fixture
def registry():
    before = open_fds()
    made = Registry(process=99)
    yield made
    assert made.statistics()["leaving"] == 0
    made.close()
    assert made.statistics() == {"buffers": 0, "bytes": 0, "leaving": 0}
    gc.collect()
    assert open_fds().keys() == before.keys()


def register(registry, data, owner=OWNER):
    return registry.add(memory_of(memoryview(data)), owner)


def copied(place, size, offset=0, into=None, *, write=False):
    room = bytearray(size) if into is None else into
    onesided.copy(place, memory_of(memoryview(room)).address, offset, size, write=write)
    return bytes(room)


def test_another_process_reads_what_is_there_now(registry, peer):
    data = bytearray(b"before the change")
    place = register(registry, data)
    assert bytes.fromhex(peer.read(place, 0, len(data))) == b"before the change"
    data[:6] = b"after "
    assert bytes.fromhex(peer.read(place, 7, 3)) == b"the"
    assert bytes.fromhex(peer.read(place, 0, 6)) == b"after "


def test_a_write_changes_the_registered_bytes_and_no_others(registry):
    data = bytearray(16)
    place = register(registry, memoryview(data)[4:12])
    copied(place, 4, offset=2, into=bytearray(b"wxyz"), write=True)
    assert data == bytes(6) + b"wxyz" + bytes(6)


@pytest.mark.parametrize("offset, size", [(0, 9), (8, 1), (1 << 40, 1)])
def test_nothing_outside_is_read_or_written(registry, peer, offset, size):
    place = register(registry, memoryview(bytearray(16))[4:12])
    assert peer.read(place, offset, size) == "Outside"
    with pytest.raises(Outside):
        copied(place, size, offset, write=True)


def test_read_only_memory_is_read_only(registry):
    place = register(registry, b"constant")
    assert copied(place, 8) == b"constant"
    with pytest.raises(Outside):
        copied(place, 8, write=True)


def test_after_a_drop_nothing_is_found(registry, peer):
    place = register(registry, bytearray(8))
    assert registry.drop(place.serial) is True
    assert registry.drop(place.serial) is False
    assert peer.read(place, 0, 8) == "Dropped"
    again = register(registry, bytearray(b"another!"))
    assert again.slot == place.slot
    assert peer.read(place, 0, 8) == "Dropped"
    assert bytes.fromhex(peer.read(again, 0, 8)) == b"another!"


def test_what_an_actor_has_registered_goes_with_it(registry):
    mine = [register(registry, bytearray(8)) for _ in range(3)]
    other = register(registry, bytearray(8), owner=8)
    registry.drop_of(OWNER)
    assert [registry.find(each.serial) for each in mine] == [None] * 3
    assert copied(other, 8) == bytes(8)


@pytest.mark.parametrize(
    "field, error",
    [("pid", Unreachable), ("fd", Unreachable), ("page", Unreachable), ("process", Unreachable),
     ("slot", Dropped), ("serial", Dropped)],
)  # fmt: skip
def test_a_forged_place_finds_nothing(registry, field, error):
    place = register(registry, bytearray(8))
    with pytest.raises(error):
        copied(place._replace(**{field: getattr(place, field) + 1}), 8)


@pytest.mark.parametrize("fd", ["directory", "pipe"])
def test_a_descriptor_that_is_no_page_is_refused(registry, tmp_path, fd):
    place = register(registry, bytearray(8))
    opened = [os.open(tmp_path, os.O_RDONLY)] if fd == "directory" else list(os.pipe())
    forged = place._replace(fd=opened[0], page=os.fstat(opened[0]).st_ino)
    with pytest.raises(Unreachable):
        copied(forged, 8)
    for each in opened:
        os.close(each)


@pytest.mark.parametrize(
    "fields",
    [(), (1, 2, 3), (1, 2, 3, 4, 5, -1), (1, 2, 3, 4, 5, "6"), (1, 2, 3, 4, 5, True),
     (1, 0, 3, 4, 5, 6), (1, 2, 3, 4, 0, 6), (1, 2, 3, 4, 5, 1 << 64), [1, 2, 3, 4, 5, 6]],
)  # fmt: skip
def test_what_is_no_place_is_a_protocol_error(fields):
    with pytest.raises(RemoteProtocolError, match="place of a buffer"):
        Place.checked(fields)


def test_memory_is_kept_while_somebody_copies(registry):
    """The lock of a copy that is under way, held by hand."""
    data = np.zeros(8, np.uint8)
    place = register(registry, data)
    count = sys.getrefcount(data)
    with onesided.locked(place) as found:
        assert found.size == 8
        registry.drop(place.serial)
        with pytest.raises(Dropped):
            copied(place, 8)
        assert registry.statistics() == {"buffers": 0, "bytes": 0, "leaving": 1}
        assert sys.getrefcount(data) == count
        assert register(registry, bytearray(8)).slot != place.slot
    eventually(lambda: registry.statistics()["leaving"] == 0)
    eventually(lambda: sys.getrefcount(data) < count)


@pytest.mark.fault
def test_a_copier_that_dies_holds_nothing(registry):
    place = register(registry, bytearray(8))
    source = (
        "import sys; from monarch_nb.data import onesided; "
        "from monarch_nb.data.registry import Place; "
        f"held = onesided.locked(Place(*{tuple(place)})); held.__enter__(); "
        "print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"held\n"
    registry.drop(place.serial)
    assert registry.statistics()["leaving"] == 1
    child.kill()
    child.communicate()
    eventually(lambda: registry.statistics()["leaving"] == 0)


def test_memory_that_was_unmapped_is_an_error(registry):
    import mmap

    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    place = register(registry, bytearray(8))
    entry = ENTRY.pack(place.serial, memory_of(memoryview(mapped)).address, 8, 1)
    gc.collect()
    mapped.close()
    os.pwrite(place.fd, entry, offset_of(place.slot))
    with pytest.raises(Outside, match="not mapped"):
        copied(place, 8)


def test_after_the_end_nothing_is_registered(registry):
    registry.close()
    with pytest.raises(ClosedError):
        register(registry, bytearray(8))


def test_a_forked_child_drops_nothing_of_its_parent(registry):
    place = register(registry, bytearray(b"parental"))
    child = os.fork()
    if child == 0:
        registry.drop(place.serial)
        os._exit(0)
    os.waitpid(child, 0)
    assert copied(place, 8) == b"parental"


def test_locks_are_of_entries(registry):
    one, other = register(registry, bytearray(8)), register(registry, bytearray(8))
    with onesided.locked(one):
        assert lock(other.fd, other.slot, fcntl.F_WRLCK) is True
        assert lock(one.fd, one.slot, fcntl.F_WRLCK) is False
        lock(other.fd, other.slot, fcntl.F_UNLCK)


def test_a_thousand_registrations_use_one_slot(registry):
    start = time.monotonic()
    for _ in range(1000):
        registry.drop(register(registry, bytearray(8)).serial)
    assert register(registry, bytearray(8)).slot == 1
    assert time.monotonic() - start < 1
