"""A process that asks a thread of another one for `1+1`, a hundred times a second, and tells how
long the longest answer took. It stands for a person who types while something goes wrong.
"""

import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

PERIOD_S: Final = 0.01
ROOT: Final = Path(__file__).parent.parent.parent


class Observer:
    """The observer of this process, and the thread that answers it."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.faults.observer", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        self._socket = mine
        self._thread = threading.Thread(target=self._answer, name="answers", daemon=True)
        self._thread.start()

    def longest_s(self) -> float:
        """Return how long the longest answer has taken since this was asked the last time."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
        self._thread.join()
        self._socket.close()

    def _answer(self) -> None:
        while question := self._socket.recv(16):
            self._socket.send(str(eval(question)).encode())


def watch(asked: socket.socket, period_s: float = PERIOD_S) -> None:
    """Ask, and tell of it whenever a line comes; end with standard input."""
    selector = selectors.DefaultSelector()
    selector.register(asked, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    longest_s, sent_at, ask_at = 0.0, 0.0, time.monotonic()
    while True:
        now = time.monotonic()
        if not sent_at and now >= ask_at:
            asked.send(b"1+1")
            sent_at = now
        for key, _ in selector.select(period_s if sent_at else max(0.0, ask_at - now)):
            now = time.monotonic()
            if key.fileobj is asked:
                if not asked.recv(16):
                    return
                longest_s, sent_at, ask_at = max(longest_s, now - sent_at), 0.0, now + period_s
            elif os.read(sys.stdin.fileno(), 16):
                print(max(longest_s, now - sent_at if sent_at else 0.0), flush=True)
                longest_s = 0.0
            else:
                return


if __name__ == "__main__":
    watch(socket.socket(fileno=int(sys.argv[1])))
