"""`python -m monarch_nb.host.join`: what a launcher runs on each host of a job.

The ticket is the first line of standard input, or in a private file. The host is a part of the job
until its controller has gone, or cannot be heard for `outage_s`; then nothing of it is left. If its
ranks are kept, it offers itself again and again, until another controller takes it, or says that it
is wanted no more, or the time is over.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

from monarch_nb.core.wire.messages.hosts import OVER, PROTOCOL, Offer, Taken
from monarch_nb.errors import LaunchError, MeshError
from monarch_nb.host import guard
from monarch_nb.host.member import HostMember
from monarch_nb.host.status import alone
from monarch_nb.host.versions import versions
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.joining import Ticket, offer, offer_again

_LONGEST_TICKET: Final = 1 << 16
_OFFER_S: Final = 2.0
_PAUSE_S: Final = 0.1  # between two offers; it grows to the longest in an hour
_LONGEST_PAUSE_S: Final = 1.0
_SLOWER: Final = 3600.0


def main(arguments: list[str] | None = None) -> None:
    """Join the job that the ticket is for. Ends by `SystemExit`, with what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m monarch_nb.host.join", description=__doc__)
    parser.add_argument("--ticket", type=Path, help="a private file; else standard input has it")
    parser.add_argument("--index", type=int, required=True, help="which host of the job this is")
    parser.add_argument("--within", type=float, default=60.0, help="seconds to reach the job in")
    parser.add_argument("--here", action="store_true", help="all hosts are this machine")
    parser.add_argument("--parent", type=int, help="end with this process, which has started it")
    asked = parser.parse_args(arguments)
    if asked.parent and not guard.die_with_parent(signal.SIGTERM, asked.parent):
        raise SystemExit(f"monarch_nb: process {asked.parent} has ended")
    try:
        ticket = _read_ticket(asked.ticket)
        why = _be_part(ticket, asked)
    except (MeshError, OSError) as error:
        raise SystemExit(f"monarch_nb: {socket.gethostname()}: {error}") from None
    if why is not None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            sys.stderr.write(f"monarch_nb: {socket.gethostname()}: the job has gone: {why}\n")
            sys.stderr.flush()


def _read_ticket(path: Path | None) -> Ticket:
    if path is not None:
        if not path.exists():
            raise LaunchError(f"the job is over, or this host does not share the folder of {path}")
        return Ticket.from_file(path)
    return Ticket.from_line(sys.stdin.buffer.readline(_LONGEST_TICKET))


def _be_part(ticket: Ticket, asked: argparse.Namespace) -> str | None:
    # Why the job has gone; None where it was shut down in order
    os.environ.update(ticket.env)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.ExitStack() as ending:
        with guard.held_back(signal.SIGTERM):
            member = HostMember(stays=False)
            ending.callback(_end, member)
        addresses = member.listen(f"ipc://{member.run_dir}/host" if asked.here else None)
        name = socket.gethostname()
        host = Offer(PROTOCOL, versions(), ticket.job, asked.index, name, addresses)
        taken = offer(ticket, host, asked.within)
        secret = Secret.from_text(taken.secret)
        member.join(taken.host, taken.controller, secret, ticket.addresses)
        while True:
            why = member.wait()
            if not member.is_left:
                return why
            if not _is_taken_again(ticket, host._replace(host=taken.host), member):
                return why


def _is_taken_again(ticket: Ticket, host: Offer, member: HostMember) -> bool:
    # False: it is wanted no more, or its ranks have ended
    began = time.monotonic()
    while member.is_left:
        news = host._replace(alone=alone.read(member.run_dir))
        answer = offer_again(ticket, news, _OFFER_S)
        if isinstance(answer, Taken):
            secret = Secret.from_text(answer.secret)
            member.join_again(answer.controller, secret, ticket.addresses)
            return True
        if answer is not None and answer.kind == OVER:
            return False
        time.sleep(min(max(_PAUSE_S, (time.monotonic() - began) / _SLOWER), _LONGEST_PAUSE_S))
    return False


def _end(member: HostMember) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends; a launcher may say so too
    member.close()


if __name__ == "__main__":
    main()
