"""The process that offers this host in the name of another: `python -m
monarch_nb.control.hosts.worker [ADDRESS]`.

It says its address when it can be reached; without one it is reached in a private folder. It ends
when its owner does, which it knows by two means: the end of its standard input and a pidfd. An
owner that says STAY lets it live on.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from typing import Final

from monarch_nb.control.faults import exit_when_told
from monarch_nb.control.hosts.attach import HostWorker

STAY: Final = b"stay"


def main() -> None:
    owner = os.pidfd_open(os.getppid())
    worker = HostWorker(sys.argv[1] if len(sys.argv) > 1 else None, None)
    exit_when_told()
    threading.Thread(target=_watch, args=(owner, worker), name="monarch-owner", daemon=True).start()
    sys.stdout.write(f"{worker.address}\n")
    sys.stdout.close()
    try:
        worker.wait()
    finally:
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
