"""The process that offers this host in the name of another: `python -m
monarch_nb.control.hosts.worker [ADDRESS]`.

It says its address when it can be reached; without one it is reached in a private folder. It ends
when its owner does, which it knows by two means: the end of its standard input and a pidfd. An
owner that says STAY lets it live on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from typing import Final

from monarch_nb.control.faults import exit_when_told
from monarch_nb.control.hosts.attach import HostWorker
from monarch_nb.host import guard

STAY: Final = b"stay"


def main() -> None:
    owner = os.pidfd_open(os.getppid())
    exit_when_told()
    with contextlib.ExitStack() as ending:
        with guard.held_back(signal.SIGTERM):
            worker = HostWorker(sys.argv[1] if len(sys.argv) > 1 else None, None)
            ending.callback(_end, worker)
        watch = threading.Thread(
            target=_watch, args=(owner, worker), name="monarch-owner", daemon=True
        )
        watch.start()
        sys.stdout.write(f"{worker.address}\n")
        sys.stdout.close()
        worker.wait()


def _end(worker: HostWorker) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends; its owner may say so too
    worker.close()


def _watch(owner: int, worker: HostWorker) -> None:
    said = sys.stdin.fileno()
    poll = select.poll()
    poll.register(said, select.POLLIN)
    poll.register(owner, select.POLLIN)
    poll.poll()
    has_word = bool(select.select([said], [], [], 0)[0])
    if not has_word or os.read(said, len(STAY)) != STAY:
        worker.close()


if __name__ == "__main__":
    main()
