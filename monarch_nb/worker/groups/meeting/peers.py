"""Who is at the other end of a gloo group's connections.

Gloo takes whoever connects first to its port and says the right small number, on the loopback any
user of the host; then it unpickles what comes. So when a group has been connected, the kernel is
asked whose sockets are at the other ends of what gloo has accepted: they have to be those of this
user, in processes that the rank has met for the group. Connections that a rank has made itself lead
to ports that their owners told in the mesh's private store.
"""

from __future__ import annotations

import functools
import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from monarch_nb.worker.groups import c10d

SETTLE_S: Final = 5.0
"""So long the other end of a connection may take to be known: its process is just making it."""
POLL_S: Final = 0.005
_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED: Final = "01"
_LISTENS: Final = "0A"
_ADVICE: Final = (
    "The group is refused: who is there could read and write what ranks send, and have code run on "
    "them. Try again, and see docs/security.md"
)


class Socket(NamedTuple):
    """A line of the kernel's table; addresses as they stand there, hexadecimal."""

    here: str
    there: str
    state: str
    uid: int
    inode: str


def install(peers: Callable[[], Iterable[int]]) -> None:
    """Have each gloo group checked as soon as it is connected. `peers()` are the processes of this
    host that its members may be; none: any of this user."""
    cls = c10d.load("torch._C._distributed_c10d").ProcessGroupGloo
    original: Callable[..., None] = cls.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def __init__(self: object, *args: object, **options: object) -> None:  # noqa: N807  of the class
        before = own_inodes(os.getpid())
        original(self, *args, **options)
        check(before, set(peers()))

    setattr(cls, "__init__", __init__)  # noqa: B010  a class that is not ours


def check(before: set[str], peers: set[int]) -> None:
    """Raise `RuntimeError` if a connection that was accepted since is not one of this user's, or of
    the `peers`. `before`: the sockets that this process had."""
    deadline = time.monotonic() + SETTLE_S
    while (wrong := _stranger(before, peers)) is not None:
        why, may_change = wrong
        if not may_change or time.monotonic() > deadline:
            raise RuntimeError(
                f"a connection to this rank's process group comes from {why}. {_ADVICE}"
            )
        time.sleep(POLL_S)


def own_inodes(pid: int) -> set[str]:
    """Return the numbers of the sockets that a process of this user has."""
    try:
        fds = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return set()
    links = map(_link, fds)
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # closed meanwhile
        return ""


def _stranger(before: set[str], peers: set[int]) -> tuple[str, bool] | None:
    # Who is at the other end of a connection and should not be; whether that may still change
    sockets = list(_table())
    new = own_inodes(os.getpid()) - before
    mine = [each for each in sockets if each.inode in new]
    ports = {each.here for each in mine if each.state == _LISTENS}
    accepted = [each for each in mine if each.here in ports and each.state == _ESTABLISHED]
    ends = {(each.here, each.there): each for each in sockets}
    theirs: set[str] | None = None
    for each in accepted:
        end = ends.get((each.there, each.here))
        if end is None:
            if _is_of_here(each):
                return "a process that has gone", False
            continue  # of another host, whose kernel is not asked
        if end.inode == "0":
            return "a process that is not known yet", True
        if end.uid != os.getuid():
            return f"a process of user {_name(end.uid)}", False
        if peers and theirs is None:
            theirs = {inode for pid in peers for inode in own_inodes(pid)}
        if theirs is not None and end.inode not in theirs:
            return "a process of yours that is no rank of the group", True
    return None


def _table() -> Iterator[Socket]:
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for line in lines:
            words = line.split()
            yield Socket(words[1], words[2], words[3], int(words[7]), words[9])


def _is_of_here(connection: Socket) -> bool:
    return connection.here.partition(":")[0] == connection.there.partition(":")[0]


def _name(uid: int) -> str:
    try:
        return f"{uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return str(uid)
