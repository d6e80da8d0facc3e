"""Linux namespaces that live exactly as long as this process wants them.

The first process inside reads a pipe that only this process holds. When the pipe is closed, or
this process ends in whatever way, the first process ends, and with it the kernel ends every other
process inside and the network. So a session that is killed leaves nothing that has to be swept.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

_UNSHARE = ("unshare", "--fork", "--kill-child=KILL")
_LIVE = "echo ready; exec env --ignore-signal=CHLD cat >/dev/null"  # so orphans that end are gone


class Namespaces:
    """New namespaces of these kinds (options of unshare(1)), set up by a shell script."""

    def __init__(self, kinds: Sequence[str], script: str = "", words: Sequence[str] = ()) -> None:
        self._kinds = kinds
        self._holder = subprocess.Popen(
            [*_UNSHARE, *kinds, "sh", "-ec", script + _LIVE, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # ctrl-C is for the tests, which end this in their order
        )
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("namespaces could not be set up; the reason is on stderr")
        [self.pid] = children_of(self._holder.pid)

    def enter(self, kinds: Iterable[str] | None = None) -> list[str]:
        """Return the start of a command line; what is put behind it runs inside."""
        return ["nsenter", "--target", str(self.pid), *(self._kinds if kinds is None else kinds)]

    def processes(self) -> set[int]:
        """Return the process ids, as seen from outside, of all that runs inside."""
        inside = _pid_namespace(self.pid)
        everyone = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        return {pid for pid in everyone if inside and _pid_namespace(pid) == inside} - {self.pid}

    def close(self) -> None:
        """End all that is inside, and wait for that."""
        with contextlib.suppress(BrokenPipeError):
            self._holder.stdin.close()
        self._holder.wait(20)
        self._holder.stdout.close()


def run(command: Sequence[str], text: str | None = None, timeout_s: float = 30.0, **options) -> str:
    """Run a command and return what it prints. Raises `RuntimeError` with its stderr if it fails.

    `options` are those of `subprocess.run`.
    """
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=timeout_s, check=False,
        **options,
    )  # fmt: skip
    if done.returncode:
        words = " ".join(command)
        raise RuntimeError(f"`{words}` ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


def children_of(pid: int) -> list[int]:
    """Return the children of a process such as `unshare` or `nsenter`: none, or one."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # gone, or a zombie
        return None
