"""Hosts of a held job that join another program as well: a process on each, which is its host there
while that program wants it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.host.launch import read_last, with_us
from monarch_nb.process.context import context


class Lender(Actor):
    """Runs on each host that is lent. It ends what it has started when it is interrupted."""

    @endpoint
    def lend(self, ticket: str) -> str:
        """Have this host join the program that has written the ticket; return how that ended."""
        index = next(iter(context().actor_instance.rank.values()))
        join = [sys.executable, "-P", "-m", "monarch_nb.host.join", "--index", str(index)]
        host = subprocess.Popen(
            [*join, "--parent", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=with_us(_of_host()),
        )
        assert host.stdin is not None
        assert host.stderr is not None
        try:
            with contextlib.suppress(BrokenPipeError), host.stdin as out:
                out.write(ticket.encode())
            words = read_last(host.stderr)
            return f"it ended with code {host.wait()}\n{words}".strip()
        finally:
            if host.poll() is None:
                host.terminate()
                host.wait()


def _of_host() -> dict[str, str]:
    # as this process was started, without what it has set for itself as a rank
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    named = (os.fsdecode(pair).partition("=") for pair in pairs if pair)
    return {name: value for name, _, value in named}
