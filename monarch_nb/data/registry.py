"""The memory that a process lets others read and write, and the page on which they look it up.

The page is a memfd with an entry for each buffer: serial, address, size. Who copies
(`data/onesided.py`) opens it through /proc, holds a shared lock on the entry while it copies, and
believes the entry, never the handle that it was sent. Rules:

1. An entry is cleared before its memory is let go, and the memory is kept until no copy holds the
   lock. So a copy that has begun ends well, and one that begins later finds nothing.
2. Locks are the kernel's (`F_OFD_*`): one whose holder dies is free at once.
3. A serial is never used twice; a slot is, when nobody holds its lock any more.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from typing import Final, NamedTuple

from monarch_nb.data.memory import Memory
from monarch_nb.errors import ClosedError, RemoteProtocolError

HEADER: Final = struct.Struct("<8sQQQ")  # magic, process id, pid, unused
ENTRY: Final = struct.Struct("<QQQQ")  # serial (0: nothing here), address, size, writable
MAGIC: Final = b"mnbrdma1"
_FLOCK: Final = struct.Struct("hhqqi4x")
_U64: Final = 1 << 64


class Place(NamedTuple):
    """Where a buffer is registered: entry `slot` of the page that is file `fd` of process `pid`.

    `process` is the owner's id, `page` the inode. Address and size that count are the entry's.
    """

    process: int
    pid: int
    fd: int
    page: int
    slot: int
    serial: int

    @classmethod
    def checked(cls, fields: object) -> Place:
        """Return the place of these fields; RemoteProtocolError if they cannot be one."""
        if isinstance(fields, tuple) and len(fields) == len(cls._fields):
            place = cls(*fields)
            is_plain = all(type(each) is int and 0 <= each < _U64 for each in fields)
            if is_plain and place.pid and place.slot and place.serial:
                return place
        raise RemoteProtocolError(f"not a place of a buffer: {fields!r:.80}")


class _Entry(NamedTuple):
    slot: int
    memory: Memory
    owner: int


class Registry:
    """The registered memory of one process. Every method may be called from any thread."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}  # by serial
        self._leaving = 0
        self._free: list[int] = []
        self._slots = 0
        self._serial = 0
        self._fd = os.memfd_create("monarch_nb-buffers", os.MFD_CLOEXEC)
        self._page = os.fstat(self._fd).st_ino
        os.pwrite(self._fd, HEADER.pack(MAGIC, process, self._pid, 0), 0)

    def add(self, memory: Memory, owner: int) -> Place:
        """Register memory for an owner (the port of an actor); kept alive until it is dropped."""
        with self._lock:
            if self._fd < 0:
                raise ClosedError("this process has left the mesh: it can register no buffer")
            self._serial += 1
            if not self._free:
                self._slots += 1
                self._free.append(self._slots)
            slot, serial = self._free.pop(), self._serial
            self._entries[serial] = _Entry(slot, memory, owner)
            self._write(slot, (serial, memory.address, memory.size, int(memory.writable)))
        return Place(self._process, self._pid, self._fd, self._page, slot, serial)

    def find(self, serial: int) -> Memory | None:
        entry = self._entries.get(serial)
        return None if entry is None else entry.memory

    def drop(self, serial: int) -> bool:
        """Let no copy begin from now on; False if there was no such buffer (any more)."""
        with self._lock:
            entry = self._entries.pop(serial, None)
            if entry is None or self._fd < 0 or os.getpid() != self._pid:
                return False
            self._write(entry.slot, (0, 0, 0, 0))
            self._leaving += 1
            if lock(self._fd, entry.slot, fcntl.F_WRLCK):
                self._let_go(self._fd, entry.slot)
                return True
            page = os.dup(self._fd)  # it outlives `close`, as long as somebody copies
        self._start_waiting(page, entry)
        return True

    def drop_of(self, owner: int) -> None:
        """Drop all that an owner has registered: it has ended."""
        for serial, entry in list(self._entries.items()):
            if entry.owner == owner:
                self.drop(serial)

    def statistics(self) -> dict[str, int]:
        """Count `buffers`, their `bytes`, and what is `leaving`: dropped, but still copied."""
        with self._lock:
            total = sum(entry.memory.size for entry in self._entries.values())
            return {"buffers": len(self._entries), "bytes": total, "leaving": self._leaving}

    def close(self) -> None:
        """Drop everything: this process leaves the mesh."""
        for serial in list(self._entries):
            self.drop(serial)
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write(self, slot: int, fields: tuple[int, int, int, int]) -> None:
        os.pwrite(self._fd, ENTRY.pack(*fields), offset_of(slot))

    def _start_waiting(self, page: int, entry: _Entry) -> None:
        # somebody copies: keep the memory until that has ended

        def wait() -> None:
            lock(page, entry.slot, fcntl.F_WRLCK, wait=True)
            with self._lock:
                self._let_go(page, entry.slot)
            os.close(page)

        threading.Thread(target=wait, name="monarch-buffer-drop", daemon=True).start()

    def _let_go(self, page: int, slot: int) -> None:
        lock(page, slot, fcntl.F_UNLCK)
        self._leaving -= 1
        self._free.append(slot)


def offset_of(slot: int) -> int:
    return HEADER.size + (slot - 1) * ENTRY.size


def lock(fd: int, slot: int, kind: int, *, wait: bool = False) -> bool:
    """Lock the entry (`F_RDLCK` to copy, `F_WRLCK` to let go, `F_UNLCK`); False if it is taken."""
    how = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    try:
        fcntl.fcntl(fd, how, _FLOCK.pack(kind, os.SEEK_SET, offset_of(slot), 1, 0))
    except BlockingIOError:
        return False
    return True
