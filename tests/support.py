"""What tests share: waiting with a deadline, and oracles that look from outside.

The oracles are `/proc`, `/dev/shm` and the temp dir. Nothing here imports monarch_nb, so that no
oracle can be fooled by what it judges.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import ipaddress
import os
import re
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROC = Path("/proc")
SHM = Path("/dev/shm")
OUR_NAMES = ("mnb-", "monarch")  # of shared memory and temp dirs; libraries have their own
SESSION_VARIABLE = "MNB_TEST_SESSION"
SESSION = f"{SESSION_VARIABLE}={uuid.uuid4().hex}"
"""In the environment of this test session, hence of every process it starts, wherever it went."""

_OURS = re.compile(rb"monarch_(nb|kernel)\b")
_LISTEN = "0A"
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _DUMP_REQUEST = 4, 20, 2, 0x301  # of Linux


# ------------------------------------------------------------------------------------------ waiting


def eventually(
    predicate: Callable[[], Any], within_s: float = 10.0, what: str | Callable[[], str] = ""
) -> Any:
    """Call `predicate` until it returns something true, and return that.

    Raises `AssertionError` after `within_s`, naming `what` was waited for. An `AssertionError` of
    the predicate means "not yet"; the last one is shown.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + within_s
    pause_s = 0.001
    last: AssertionError | None = None
    while True:
        try:
            if result := predicate():
                return result
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            name = what() if callable(what) else what or getattr(predicate, "__name__", "it")
            raise AssertionError(f"not within {within_s:g} s: {name}") from last
        threading.Event().wait(pause_s)
        pause_s = min(pause_s * 2, 0.05)


def until_exists(path: str | Path) -> None:
    """What ranks do until a test makes the file: be busy, in steps that an interrupt can end."""
    while not os.path.exists(path):
        threading.Event().wait(0.005)


def code_until(path: str | Path) -> str:
    """The same as the code of a cell."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n"


# ---------------------------------------------------------------------------------------- processes


def process_state(pid: int) -> str | None:
    """The letter of /proc (R, S, D, T, Z ...), or None for a process that is gone."""
    fields = _stat(pid)
    return fields[0] if fields else None


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie has)."""
    return process_state(pid) not in {None, "Z", "X"}


def stop(pid: int) -> None:
    """SIGSTOP, and wait until no thread runs any more: `kill` returns while the signal is on its
    way, and a process may still answer."""
    os.kill(pid, signal.SIGSTOP)
    threads = PROC / str(pid) / "task"
    eventually(lambda: all(process_state(int(each.name)) == "T" for each in threads.iterdir()))


def descendants(pid: int) -> set[int]:
    """Children of `pid`, their children, and so on; those that were re-parented are not found."""
    return _below(pid, _processes())


def _below(pid: int, processes: dict[int, list[str]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for other, fields in processes.items():
        children.setdefault(int(fields[1]), []).append(other)
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            found.add(child)
            todo.append(child)
    return found


def session_processes() -> set[int]:
    """Every live process of this session but pytest: descendants, and marked ones."""
    pids = {pid for pid in _all_pids() if _is_marked(pid)} | descendants(os.getpid())
    return {pid for pid in pids if is_running(pid)} - {os.getpid()}


def describe_process(pid: int) -> str:
    """One line for a failure message."""
    command = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"process {pid} ({process_state(pid)}) {command[:160] or '[no command line]'}"


def rss_bytes(pid: int | str = "self") -> int:
    """The memory that a process has in use, shared pages counted."""
    return int(_read(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listening_ports(pid: int) -> set[str]:
    """`ADDRESS port N` for each TCP socket on which the process listens."""
    table = _listeners(pid)
    return {table[inode] for inode in _socket_inodes(pid) if inode in table}


def open_fds(pid: int | str = "self") -> dict[int, str]:
    """Descriptors and what they point to."""
    found = {}
    folder = PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found[int(name)] = os.readlink(folder / name)
    return found


def chromium() -> str | None:
    """Where a Chromium is, for `playwright` and for screenshots."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


# -------------------------------------------------------------------------------------------- leaks


@dataclass(frozen=True, repr=False)
class Snapshot:
    """What exists at one moment and should exist no longer than the test that made it."""

    processes: dict[int, str] = field(default_factory=dict)
    fds: frozenset[tuple[int, str]] = frozenset()
    threads: frozenset[threading.Thread] = frozenset()
    shared_memory: frozenset[str] = frozenset()
    temp_dirs: frozenset[str] = frozenset()
    listeners: frozenset[str] = frozenset()

    @staticmethod
    def take() -> Snapshot:
        """Look now."""
        return Snapshot(
            processes={pid: fields[19] for pid, fields in _processes().items()},
            fds=frozenset(_own_fds()),
            threads=frozenset(threading.enumerate()),
            shared_memory=frozenset(_shared_memory()),
            temp_dirs=frozenset(_temp_dirs()),
            listeners=frozenset(_own_listeners()),
        )

    def with_what_a_client_keeps(self) -> Snapshot:
        """The same and what it has made meanwhile for its own life: threads, memory to lend."""
        kept = {(fd, target) for fd, target in _own_fds() if target.startswith("/memfd:monarch_nb")}
        threads = frozenset(threading.enumerate())
        return dataclasses.replace(self, threads=threads, fds=self.fds | kept)

    def leaks(self) -> list[str]:
        """What is here now and was not then, one line each."""
        return [
            *self._leaked_processes(),
            *(f"fd {fd} -> {target}" for fd, target in _own_fds() - self.fds),
            *(
                f"thread {thread.name}"
                for thread in set(threading.enumerate()) - self.threads
                if thread.name.startswith("monarch-")
            ),
            *(
                f"shared memory {SHM / name}"
                for name in _shared_memory() - self.shared_memory
                if not _mapped_by_strangers(name)
            ),
            *(
                f"temp dir {name} with {sorted(_names(Path(name)))}"
                for name in _temp_dirs() - self.temp_dirs
            ),
            *self._leaked_listeners(),
        ]

    def assert_clean(self, within_s: float = 5.0) -> None:
        """Wait until all that came after this snapshot is gone; name what is left otherwise."""
        __tracebackhide__ = True
        left = self.leaks()
        if not left:
            return

        def clean() -> bool:
            gc.collect()
            left[:] = self.leaks()
            return not left

        try:
            eventually(clean, within_s)
        except AssertionError:
            self._end_leaked_processes()
            lines = "\n  ".join(left)
            raise AssertionError(f"left behind after {within_s:g} s:\n  {lines}") from None

    def _end_leaked_processes(self) -> None:
        """One test's leak shall not slow down or fail the next."""
        for pid in session_processes() - self.processes.keys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _leaked_processes(self) -> Iterator[str]:
        processes = _processes()
        own = _below(os.getpid(), processes)
        for pid, fields in processes.items():
            if self.processes.get(pid) == fields[19] or pid == os.getpid():
                continue
            if pid in own or (fields[0] != "Z" and (_is_marked(pid) or _is_stray(pid))):
                yield describe_process(pid)

    def _leaked_listeners(self) -> Iterator[str]:
        table = _own_listeners()
        if not (fresh := set(table) - self.listeners):
            return
        for pid in session_processes() | {os.getpid()}:
            for inode in fresh & _socket_inodes(pid):
                yield f"listening socket {table[inode]} of {describe_process(pid)}"


def _is_marked(pid: int) -> bool:
    return SESSION.encode() in _read(pid, "environ").split(b"\0")


def _is_stray(pid: int) -> bool:
    """An orphan that runs our code with an environment wiped of every session's mark."""
    fields = _stat(pid)
    if fields is None or fields[1] != "1" or not _OURS.search(_read(pid, "cmdline")):
        return False
    return f"{SESSION_VARIABLE}=".encode() not in _read(pid, "environ")


def _own_fds() -> set[tuple[int, str]]:
    standard = {0, 1, 2}  # pytest puts files of its own in their place while it captures
    return {
        (fd, target)
        for fd, target in open_fds().items()
        if fd not in standard and not target.startswith("/proc/")
    }


def _shared_memory() -> set[str]:
    return {name for name in _names(SHM) if name.startswith(OUR_NAMES)}


def _temp_dirs() -> set[str]:
    folder = Path(tempfile.gettempdir())
    return {f"{folder}/{name}" for name in _names(folder) if name.startswith(OUR_NAMES)}


def _mapped_by_strangers(name: str) -> bool:
    """Another session on this machine uses it. What leaked is mapped by nobody, or by ours."""
    path = str(SHM / name)
    ours = session_processes() | {os.getpid()}
    return any(
        path.encode() in _read(pid, "maps") or path in open_fds(pid).values()
        for pid in set(_all_pids()) - ours
    )


# -------------------------------------------------------------------------------------------- /proc


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _processes() -> dict[int, list[str]]:
    """What `_stat` says of each."""
    return {pid: fields for pid in _all_pids() if (fields := _stat(pid))}


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on: 0 state, 1 parent, 19 start time."""
    text = _read(pid, "stat")
    return text[text.rindex(b")") + 2 :].decode().split() if text else None


def _read(pid: int | str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # gone, or not ours to read
        return b""


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _own_listeners() -> dict[str, str]:
    """The same as `_listeners`, a hundred times as fast: each test asks twice. See sock_diag(7)."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            return dict(_told_by(kernel, socket.AF_INET)) | dict(_told_by(kernel, socket.AF_INET6))
    except OSError:  # a kernel without it
        return _listeners("self")


def _told_by(kernel: socket.socket, family: int) -> Iterator[tuple[str, str]]:
    """Ask for the listening sockets of a family: an `nlmsghdr`, then `inet_diag_req_v2`."""
    wanted = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 0, 1 << int(_LISTEN, 16))
    header = struct.pack("=IHHII", 16 + len(wanted), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 0, 0)
    kernel.send(header + wanted)
    length = 4 if family == socket.AF_INET else 16
    while True:
        answer, at = kernel.recv(1 << 17), 0
        while at < len(answer):
            size, kind = struct.unpack_from("=IH", answer, at)
            if kind == _NLMSG_ERROR:
                raise OSError("refused")
            if kind != _SOCK_DIAG_BY_FAMILY:  # the last
                return
            address = ipaddress.ip_address(answer[at + 24 : at + 24 + length])
            [port] = struct.unpack_from("!H", answer, at + 20)
            [inode] = struct.unpack_from("=I", answer, at + 84)
            yield str(inode), f"{address} port {port}"
            at += size


def _listeners(pid: int | str) -> dict[str, str]:
    """Inode to `ADDRESS port N` of each listening TCP socket in the process's namespace."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN:
                    address, port = fields[1].rsplit(":", 1)
                    found[fields[9]] = f"{_readable(address)} port {int(port, 16)}"
    return found


def _readable(address: str) -> str:
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def _socket_inodes(pid: int) -> set[str]:
    return {
        target[len("socket:[") : -1]
        for target in open_fds(pid).values()
        if target.startswith("socket:[")
    }
