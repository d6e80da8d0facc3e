"""Deaths in the moment in which somebody begins to wait: whose call has raised one is not told of
it once more, which would end a script."""

import functools
import os
import signal
import threading

import pytest

from monarch_nb import SupervisionError, this_host
from monarch_nb.control import cells
from monarch_nb.control.client import client
from tests import inside
from tests.faults.actors import Worker
from tests.support import eventually


@pytest.fixture
def procs():
    made = this_host().spawn_procs(per_host={"gpus": 1})
    made.initialized.get(timeout=20)
    return made


@pytest.fixture
def told(procs):
    """Returns, once all is told that is to be, the failures for which nobody has waited."""
    found, over = [], threading.Event()
    client().on_failure(found.append)
    client().supervision.on_told.append(over.set)

    def wait():
        assert over.wait(5)
        return found

    return wait


@pytest.fixture
def dies_when_it_is_called(procs, monkeypatch):
    """The rank dies as soon as something was sent to it, and its end is noted, slowly, before who
    sends can wait."""
    proc = client().proc
    [rank], [pid] = inside.processes(procs), inside.pids(procs).values()
    mark_dead = proc.mark_dead

    def slowly(ended):
        mark_dead(ended)
        threading.Event().wait(0.3)

    def send(method, *args, **kwargs):
        method(*args, **kwargs)
        if rank not in proc.dead:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: rank in proc.dead)

    for name in ("send", "cast"):
        monkeypatch.setattr(proc, name, functools.partial(send, getattr(proc, name)))
    monkeypatch.setattr(proc, "mark_dead", slowly)


@pytest.mark.fault
@pytest.mark.parametrize("begin", [
    lambda sleep: sleep.call(60),
    lambda sleep: sleep.call_one(60),
    lambda sleep: next(sleep.stream(60)),
], ids=["call", "call_one", "stream"])  # fmt: skip
def test_a_call_raises_it_and_nobody_else_is_told(procs, told, request, begin):
    worker = procs.spawn("worker", Worker)
    worker.initialized.get(timeout=20)
    request.getfixturevalue("dies_when_it_is_called")
    with pytest.raises(SupervisionError, match="SIGKILL|sig=9"):
        begin(worker.sleep).get(timeout=5)
    assert told() == []


@pytest.mark.fault
def test_a_cell_tells_it_and_nobody_else(procs, told, dies_when_it_is_called):
    ended = cells.run_cell(procs, "import time; time.sleep(60)", filename="a", first_line=1, tag=0)
    assert ended.wait(5)
    assert ended.outcomes[0].status == "lost"
    assert told() == []
