"""`python -m monarch_nb.host.join`: what a launcher runs on each host of a job.

The ticket is the first line of standard input, or in a private file. The host is a part of the job
until its controller has gone, or cannot be heard for `outage_s`; then nothing of it is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from monarch_nb.core.wire.messages.hosts import PROTOCOL, Offer
from monarch_nb.errors import LaunchError, MeshError
from monarch_nb.host import guard
from monarch_nb.host.member import HostMember
from monarch_nb.host.versions import versions
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.joining import Ticket, offer

_LONGEST_TICKET: Final = 1 << 16


def main(arguments: list[str] | None = None) -> None:
    """Join the job that the ticket is for. Ends by `SystemExit`, with what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m monarch_nb.host.join", description=__doc__)
    parser.add_argument("--ticket", type=Path, help="a private file; else standard input has it")
    parser.add_argument("--index", type=int, required=True, help="which host of the job this is")
    parser.add_argument("--within", type=float, default=60.0, help="seconds to reach the job in")
    parser.add_argument("--parent", type=int, help="end with this process, which has started it")
    asked = parser.parse_args(arguments)
    if asked.parent and not guard.die_with_parent(signal.SIGTERM, asked.parent):
        raise SystemExit(f"monarch_nb: process {asked.parent} has ended")
    try:
        ticket = _read_ticket(asked.ticket)
        why = _be_part(ticket, asked.index, asked.within)
    except (MeshError, OSError) as error:
        raise SystemExit(f"monarch_nb: {socket.gethostname()}: {error}") from None
    if why is not None:
        sys.stderr.write(f"monarch_nb: {socket.gethostname()}: the job has gone: {why}\n")


def _read_ticket(path: Path | None) -> Ticket:
    if path is not None:
        if not path.exists():
            raise LaunchError(f"the job is over, or this host does not share the folder of {path}")
        return Ticket.from_file(path)
    return Ticket.from_line(sys.stdin.buffer.readline(_LONGEST_TICKET))


def _be_part(ticket: Ticket, index: int, within_s: float) -> str | None:
    # Why the job has gone; None where it was shut down in order
    os.environ.update(ticket.env)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.ExitStack() as ending:
        with guard.held_back(signal.SIGTERM):
            member = HostMember(stays=False)
            ending.callback(_end, member)
        addresses = member.listen(None)
        name = socket.gethostname()
        host = Offer(PROTOCOL, versions(), ticket.job, index, name, addresses)
        taken = offer(ticket, host, within_s)
        secret = Secret.from_text(taken.secret)
        member.join(taken.host, taken.controller, secret, ticket.addresses)
        return member.wait()


def _end(member: HostMember) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends; a launcher may say so too
    member.close()


if __name__ == "__main__":
    main()
