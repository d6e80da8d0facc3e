"""A log of records on disk that grows to a limit: then its older half goes.

Records are numbered. Each is one write to the end of the file, behind its header, so a process that
is killed leaves whole records. One process writes, others read at any time.

    length u32 | tag u32 | number u64 | port u64 | seconds f64 | payload
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_HEADER: Final = struct.Struct("<IIQQd")
_PART_BYTES: Final = 1 << 20
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LogRecord(NamedTuple):
    """A message that was sent to a port, for a notebook cell, at a time (seconds since 1970)."""

    tag: int
    number: int
    port: int
    at_s: float
    payload: bytes


class RecordLog:
    """The end at which records are written, of a new log in a folder that is private."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.number = 0
        """The number that the next record gets."""
        self._path = path
        self._limit = limit_bytes // 2  # of each of two files
        self._fd, self._size = os.open(path, _FLAGS | os.O_EXCL, 0o600), 0

    def append(self, tag: int, port: int, at_s: float, payload: bytes) -> None:
        """Write a record. Raises `OSError` where the disk is full."""
        header = _HEADER.pack(len(payload), tag, self.number, port, at_s)
        size = len(header) + len(payload)
        if self._size and self._size + size > self._limit:
            self._begin_file()
        if os.writev(self._fd, [header, payload]) < size:
            os.ftruncate(self._fd, self._size)  # else nothing behind it could be read
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += size
        self.number += 1

    def close(self) -> None:
        os.close(self._fd)

    def _begin_file(self) -> None:
        os.close(self._fd)
        self._path.replace(_older(self._path))
        self._fd, self._size = os.open(self._path, _FLAGS, 0o600), 0


def output_log(run_dir: Path, process: int) -> Path:
    """Return where a process of a kept mesh logs what it sends to its controller as output."""
    return run_dir / f"{process:016x}.output"


def read_log(path: Path) -> Iterator[LogRecord]:
    """Return the records that are there, the oldest first; none where there is no log."""
    with contextlib.ExitStack() as files:
        for part in _parts(path, files):
            yield from (record for record, _ in _records(part))


def log_parts(path: Path) -> Iterator[bytes]:
    """Return what `read_log` reads, as it is in the files, a megabyte or so at a time: whole
    records, to be written to a file that is read so elsewhere."""
    with contextlib.ExitStack() as files:
        for part in _parts(path, files):
            begin = end = 0
            for _, end in _records(part):
                if end - begin >= _PART_BYTES:
                    yield part[begin:end]
                    begin = end
            if end > begin:
                yield part[begin:end]


class FollowedLog:
    """A log that is read as it grows."""

    def __init__(self, path: Path) -> None:
        self.has_more = False
        """Whether the last `read` has left some of it: it had returned as much as it might."""
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def read(self, most_bytes: int) -> list[LogRecord]:
        """Return what has come since it was read last, about so much of it at a time. What went
        meanwhile is left out."""
        found: list[LogRecord] = []
        while self._open():
            assert self._file is not None
            is_over = _number(self._path) != os.fstat(self._file.fileno()).st_ino
            data = self._file.read(most_bytes)
            found += self._whole(data)
            self.has_more = len(data) == most_bytes
            if self.has_more or not is_over:
                break
            self.close()  # another file was begun
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._rest = None, b""

    def _open(self) -> bool:
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self._file = self._path.open("rb")
        return self._file is not None

    def _whole(self, new: bytes) -> list[LogRecord]:
        data, end = self._rest + new, 0
        found: list[LogRecord] = []
        for record, end in _records(data):  # noqa: B007  where the last one ends
            found.append(record)
        self._rest = data[end:]
        return found


def _parts(path: Path, files: contextlib.ExitStack) -> list[mmap.mmap]:
    # both files at one moment: the older one goes when a new one is begun
    while True:
        number = _number(path)
        found = [_mapped(each, files) for each in (_older(path), path)]
        if _number(path) == number:
            return [each for each in found if each is not None]


def _number(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _mapped(path: Path, files: contextlib.ExitStack) -> mmap.mmap | None:
    try:
        with path.open("rb") as file:
            return files.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    except (FileNotFoundError, ValueError):  # there is none, or nothing in it
        return None


def _records(data: mmap.mmap | bytes) -> Iterator[tuple[LogRecord, int]]:
    # each whole record, and where it ends
    at = 0
    while at + _HEADER.size <= len(data):
        length, tag, number, port, at_s = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if at + length > len(data):
            return
        begin, at = at, at + length
        yield LogRecord(tag, number, port, at_s, data[begin:at]), at


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.older")
