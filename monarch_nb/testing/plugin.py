"""Fixtures of pytest: `mesh`, and `no_leaks`.

Tests share one client, as a host takes seconds to start; after a test that has ended its host, or
has had others, the next one starts a new client. pytest loads this by the name of the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Final

import pytest

import monarch_nb
from monarch_nb import HostMesh, MeshFailure, ProcMesh, attach_to_workers, this_host
from monarch_nb.control.client import running_client
from monarch_nb.core.text.columns import columns
from monarch_nb.host.launch import with_us
from monarch_nb.testing import processes
from monarch_nb.testing.leaks import Snapshot

_DEFAULT: Final = {"gpus": 4}
_START_S: Final = 60.0
_END_S: Final = 30.0
_WORKER: Final = """
import sys
from monarch_nb import start_worker_loop_forever
print(start_worker_loop_forever(address="tcp://127.0.0.1:*").get(), flush=True)
sys.stdin.read()
"""
_failures: Final = pytest.StashKey[list[MeshFailure]]()


def pytest_configure(config: pytest.Config) -> None:
    """Have meshes of this session let tests harm them, and their processes be known as its own."""
    config.addinivalue_line(
        "markers",
        "mesh(**sizes): axes of the fixture `mesh`; `hosts` are so many workers on this machine",
    )
    os.environ["MONARCH_NB_TESTING"] = "1"
    processes.mark_session()


@pytest.fixture(scope="session")
def _shared_client() -> Iterator[None]:
    yield
    _end_client()


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest, _shared_client: None) -> Iterator[None]:
    """Fail a test that leaves something behind: a process, a file descriptor, a thread or a folder
    of monarch_nb, shared memory, a listening socket.

    It looks from outside, at `/proc` and `/dev/shm`, and ends the processes that it names. What is
    gone within five seconds is no leak. The fixture `mesh` stops its ranks before; a mesh that the
    test has made it has to stop.
    """
    if "mesh" in request.fixturenames and "hosts" not in _sizes(request.node):
        _ready_client()
    found, before = running_client(), Snapshot.take()
    agent = None if found is None else found.proc.agent
    yield
    if found is not None and running_client() is found and found.proc.agent == agent:
        before = before.with_what_a_client_keeps()
    else:
        _end_client()
    before.assert_clean()


@pytest.fixture
def mesh(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    _shared_client: None,
) -> Iterator[ProcMesh]:
    """Return ranks that are up, and are stopped when the test is over: four on the axis `gpus`,
    others by `@pytest.mark.mesh(gpus=8)`, or by the parameter of the fixture, `{"gpus": 8}`.

    With `hosts=2` there are two workers on this machine, attached as other hosts are, with links
    between them and the test. A failure of ranks that nobody waits for does not end the tests; the
    report of a test that fails tells of it, and in which state each rank is.
    """
    if "no_leaks" in request.fixturenames:
        request.getfixturevalue("no_leaks")  # before anything is made, whichever is named first
    sizes = _sizes(request.node)
    failures: list[MeshFailure] = []
    request.node.stash[_failures] = failures
    monkeypatch.setattr(monarch_nb, "unhandled_fault_hook", failures.append)
    if hosts := sizes.pop("hosts", 0):
        monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path_factory.mktemp("keys")))
        yield from _on_workers(hosts, sizes)
    else:
        _ready_client()
        yield from _spawned(this_host(), sizes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say of a test that fails in which state the ranks of its `mesh` are."""
    report = yield
    procs = getattr(item, "funcargs", {}).get("mesh")
    if report.failed and report.when == "call" and isinstance(procs, ProcMesh):
        report.sections.append((f"ranks of {procs.name}", _states(procs)))
        for failure in item.stash.get(_failures, []):
            report.sections.append(("failure that nobody waited for", failure.report()))
    return report


def _states(procs: ProcMesh) -> str:
    if (found := running_client()) is None:
        return "the client has ended"
    rows = [("rank", "coordinates", "pid", "state", "")]
    for mesh in found.snapshot().meshes:
        if mesh.name == procs.name:
            for each in mesh.ranks:
                place = " ".join(f"{label}={at}" for label, at in each.coords.items())
                doing = " ".join(filter(None, (each.what, each.detail)))
                rows.append((str(each.rank), place, str(each.pid or ""), each.state, doing))
    return "\n".join(columns(rows))


def _sizes(node: pytest.Item) -> dict[str, int]:
    chosen = getattr(node, "callspec", None)
    if chosen is not None and "mesh" in chosen.params:
        return dict(chosen.params["mesh"])
    marker = node.get_closest_marker("mesh")
    return dict(_DEFAULT if marker is None else marker.kwargs)


def _spawned(hosts: HostMesh, sizes: dict[str, int]) -> Iterator[ProcMesh]:
    procs = hosts.spawn_procs(per_host=sizes)
    try:
        procs.initialized.get(timeout=_START_S)
        yield procs
    finally:
        procs.stop().get(timeout=_END_S)


def _on_workers(count: int, sizes: dict[str, int]) -> Iterator[ProcMesh]:
    workers = [_Worker() for _ in range(count)]
    try:
        yield from _spawned(attach_to_workers(workers=[each.address() for each in workers]), sizes)
    finally:
        _end_client()
        for each in workers:
            each.end()


class _Worker:
    """A process that offers this machine as another host, until it is told to end or we end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=with_us(os.environ),
        )

    def address(self) -> str:
        """Wait until it listens; return where."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        """End it, and wait for that."""
        self._process.communicate(timeout=_END_S)


def _ready_client() -> None:
    # what a host makes once, for its first ranks, is no leak of a test
    if running_client() is None:
        first = this_host().spawn_procs()
        first.initialized.get(timeout=_START_S)
        first.stop().get(timeout=_END_S)


def _end_client() -> None:
    if running_client() is not None:
        monarch_nb.shutdown_context().get(timeout=_END_S)
