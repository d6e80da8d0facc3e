"""A host that cannot be attached: every call on it ends, and says which address and why."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from monarch_nb import (
    Actor,
    SupervisionError,
    attach_to_workers,
    endpoint,
    shutdown_context,
)
from monarch_nb.net import keys
from tests.support import eventually, open_fds

SAID = r"attach failed: .*{}"


class Where(Actor):
    @endpoint
    def where(self):
        return 1


@pytest.fixture(params=["closed", "silent"])
def nobody(request, home):
    """An address at which no worker is."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        if request.param == "closed":
            listener.close()
        yield f"tcp://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def failures(monkeypatch, attach_within):
    attach_within(1.0)
    told = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    return told


def test_every_call_on_it_ends_with_its_address(nobody):
    hosts = attach_to_workers(workers=[nobody])
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    actors = procs.spawn("where", Where)
    call = actors.where.call()
    with pytest.raises(SupervisionError, match=SAID.format(nobody)) as raised:
        call.get(20)
    assert "heal" not in str(raised.value)  # nothing to bring back
    for waited in (procs.initialized, actors.initialized):
        with pytest.raises(SupervisionError, match=SAID.format(nobody)):
            waited.get(5)
    with pytest.raises(SupervisionError, match=SAID.format(nobody)):
        actors.where.call()  # at once: it is known now
    with pytest.raises(RuntimeError, match=SAID.format(nobody)):
        hosts.initialized.get(5)


def test_what_is_spawned_after_the_failure_ends_too(nobody):
    hosts = attach_to_workers(workers=[nobody])
    with pytest.raises(RuntimeError, match=SAID.format(nobody)):
        hosts.initialized.get(20)
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    with pytest.raises(SupervisionError, match=SAID.format(nobody)) as raised:
        procs.initialized.get(5)
    assert str(raised.value).count("the process this actor was running on") == 1
    with pytest.raises(SupervisionError, match=SAID.format(nobody)):
        procs.spawn("where", Where)
    with pytest.raises(SupervisionError, match=SAID.format(nobody)):
        procs.heal()
    procs.stop().get(5)
    hosts.shutdown().get(5)


def test_the_other_hosts_go_on(workers, nobody):
    [address], _ = workers(1)
    both = attach_to_workers(workers=[address, nobody])
    actors = both.spawn_procs().spawn("where", Where)
    with pytest.raises(SupervisionError, match=SAID.format(nobody)):
        actors.where.call().get(20)
    assert actors.slice(hosts=0).where.call_one().get(30) == 1


def test_a_worker_that_another_client_has_is_told_of(workers, failures):
    [address], _ = workers(1)
    program = (
        "import sys; from monarch_nb import attach_to_workers\n"
        "attach_to_workers(workers=[sys.argv[1]]).initialized.get(30)\n"
        "print('attached', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, address]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout.readline() == "attached\n"
        at = time.monotonic()
        procs = attach_to_workers(workers=[address]).spawn_procs()
        with pytest.raises(SupervisionError, match=SAID.format(address) + ": another client"):
            procs.spawn("where", Where).where.call().get(20)  # the refusal may be here by now
        assert time.monotonic() - at < 1.0  # said, not waited for
        other.stdin.close()


def test_a_worker_with_other_keys_is_told_of(workers, tmp_path):
    [address], _ = workers(1, MONARCH_NB_HOME=str(tmp_path / "others"))
    keys.identity(tmp_path / "others")
    actors = attach_to_workers(workers=[address]).spawn_procs().spawn("where", Where)
    with pytest.raises(SupervisionError, match=SAID.format(address)):
        actors.where.call().get(20)


def test_an_attempt_that_failed_leaves_nothing_open(nobody):
    def attempt() -> None:
        attach_to_workers(workers=[nobody]).initialized.exception(20)

    attempt()
    before = len(open_fds())
    for _ in range(3):
        attempt()
    eventually(lambda: len(open_fds()) <= before, 10.0)


def test_a_client_that_ends_meanwhile_leaves_no_thread(nobody, attach_within):
    attach_within(30.0)
    attach_to_workers(workers=[nobody])
    shutdown_context().get(20)
    assert "monarch-attach" not in [each.name for each in threading.enumerate()]
