"""What `/proc` says of processes: the oracle of tests, outside of what it judges.

Rule: it imports the standard library alone, and asks no process about itself.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
SESSION_VARIABLE: Final = "MNB_TEST_SESSION"
SESSION: Final = f"{SESSION_VARIABLE}={uuid.uuid4().hex}"
"""In the environment of a test session, hence of every process that it starts, wherever it went."""

_OURS: Final = re.compile(rb"monarch_(nb|kernel)\b")
_LISTEN: Final = "0A"
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _DUMP_REQUEST = 4, 20, 2, 0x301  # of Linux


def mark_session() -> None:
    """Mark what this process starts from now on as of this test session."""
    variable, _, value = SESSION.partition("=")
    os.environ[variable] = value


def process_state(pid: int) -> str | None:
    """Return the letter of /proc (R, S, D, T, Z ...), or None for a process that is gone."""
    fields = stat(pid)
    return fields[0] if fields else None


def is_running(pid: int) -> bool:
    """Tell whether the process exists and has not ended (a zombie has)."""
    return process_state(pid) not in {None, "Z", "X"}


def descendants(pid: int) -> set[int]:
    """Return its children, their children, and so on; re-parented ones are not found."""
    return below(pid, processes())


def below(pid: int, found: dict[int, list[str]]) -> set[int]:
    """Return the same, of what `processes` has found."""
    children: dict[int, list[int]] = {}
    for other, fields in found.items():
        children.setdefault(int(fields[1]), []).append(other)
    family: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            family.add(child)
            todo.append(child)
    return family


def session_processes() -> set[int]:
    """Return every live process of this session but this: descendants, and marked ones."""
    pids = {pid for pid in all_pids() if is_marked(pid)} | descendants(os.getpid())
    return {pid for pid in pids if is_running(pid)} - {os.getpid()}


def is_marked(pid: int) -> bool:
    """Tell whether it is of this session by its environment."""
    return SESSION.encode() in read(pid, "environ").split(b"\0")


def is_stray(pid: int) -> bool:
    """Tell whether it is an orphan that runs our code, its environment wiped of every mark."""
    fields = stat(pid)
    if fields is None or fields[1] != "1" or not _OURS.search(read(pid, "cmdline")):
        return False
    return f"{SESSION_VARIABLE}=".encode() not in read(pid, "environ")


def describe_process(pid: int) -> str:
    """Return one line for a failure message."""
    command = read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"process {pid} ({process_state(pid)}) {command[:160] or '[no command line]'}"


def open_fds(pid: int | str = "self") -> dict[int, str]:
    """Return descriptors and what they point to."""
    found = {}
    folder = PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found[int(name)] = os.readlink(folder / name)
    return found


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def processes() -> dict[int, list[str]]:
    """Return what `stat` says of each."""
    return {pid: fields for pid in all_pids() if (fields := stat(pid))}


def stat(pid: int) -> list[str] | None:
    """Return fields of /proc/<pid>/stat from the state on: 0 state, 1 parent, 19 start time."""
    text = read(pid, "stat")
    return text[text.rindex(b")") + 2 :].decode().split() if text else None


def read(pid: int | str, name: str) -> bytes:
    """Return what a file of /proc/<pid> has; nothing of a process that is gone, or not ours."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


# ------------------------------------------------------------------------------ listening sockets


def listening_sockets() -> dict[str, str]:
    """Return those of this network namespace: inode to `ADDRESS port N`. See sock_diag(7)."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            return dict(_told_by(kernel, socket.AF_INET)) | dict(_told_by(kernel, socket.AF_INET6))
    except OSError:  # a kernel without it
        return listening_sockets_of("self")


def _told_by(kernel: socket.socket, family: int) -> Iterator[tuple[str, str]]:
    # ask for the listening sockets of a family: an `nlmsghdr`, then `inet_diag_req_v2`
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


def listening_sockets_of(pid: int | str) -> dict[str, str]:
    """Return the same of the process's namespace, read from a file: a hundred times as slow."""
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


def socket_inodes(pid: int) -> set[str]:
    """Return the inodes of all sockets that a process has open."""
    return {
        target[len("socket:[") : -1]
        for target in open_fds(pid).values()
        if target.startswith("socket:[")
    }
