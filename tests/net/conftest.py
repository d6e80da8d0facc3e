"""Worker processes that offer hosts, on this machine."""

import os
import subprocess
import sys
import textwrap

import pytest

from monarch_nb import configure, shutdown_context
from monarch_nb.config import Config

WORKER = textwrap.dedent("""
    import sys
    from monarch_nb import start_worker_loop_forever
    print(start_worker_loop_forever(address=sys.argv[1]).get(), flush=True)
    import threading
    while True:
        threading.Event().wait(1)  # a SIGTERM just before a wait is not noticed by that wait
""")


class Workers:
    """`workers(2)`: two more; their addresses and processes."""

    def __init__(self):
        self.started = []

    def __call__(self, count=1, *, address="tcp://127.0.0.1:*", listener=None, **env):
        new = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, address],
                pass_fds=() if listener is None else [listener.fileno()],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **env},
            )
            for _ in range(count)
        ]
        self.started.extend(new)
        return [each.stdout.readline().strip() for each in new], new

    def end(self):
        shutdown_context().get(20)
        for each in self.started:
            each.terminate()
            each.wait(10)
            each.stdout.close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    return tmp_path / "keys"


@pytest.fixture
def attach_within():
    """`attach_within(1.0)`: how long a host may take to answer, until the test ends."""
    yield lambda limit_s: configure(attach_s=limit_s)
    configure(attach_s=Config().attach_s)
    os.environ.pop("MONARCH_NB_ATTACH_S", None)


@pytest.fixture
def workers(home):
    made = Workers()
    yield made
    made.end()
