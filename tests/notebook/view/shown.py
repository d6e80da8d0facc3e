"""Meshes to look at, and a hub that keeps what is said through its channels.

In a cell of a kernel with a fake runtime whose mesh is up: `from tests.notebook.view.shown import
dress; hub = dress(get_ipython(), folder)`.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from monarch_nb.notebook.session import session_of
from monarch_nb.notebook.view.browser import assets
from monarch_nb.notebook.view.browser.showing import Showing
from monarch_nb.notebook.view.picture.snapshots import Failure, MeshSnapshot, Part
from tests.notebook.fake_client import FakeMesh

TAKEN = dt.datetime(2031, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
AT = 1000.0


def rank(
    number: int, state: str = "idle", what: str = "", detail: str = "", since: float = 0.0
) -> Any:
    return SimpleNamespace(rank=number, coords={}, pid=1000 + number, host=0, state=state,
                           what=what, detail=detail, since=since)  # fmt: skip


def status(sizes: Mapping[str, int], ranks: Sequence[Any], name: str = "mesh0") -> Any:
    return SimpleNamespace(name=name, labels=tuple(sizes), sizes=tuple(sizes.values()),
                           ranks=tuple(ranks), actors=(), ended=None)  # fmt: skip


def failure(ranks: Iterable[int], headline: str = "ValueError: bad", count: int = 1) -> Failure:
    return Failure("f1", tuple(ranks), headline, "train.py, line 12", "step", AT - 2, count)


def still(
    sizes: Mapping[str, int],
    ranks: Sequence[Any],
    failures: Sequence[Failure] = (),
    part: Part | None = None,
) -> MeshSnapshot:
    whole = Part("mesh0", "<ProcMesh mesh0>", "mesh0", tuple(range(len(ranks))), sizes)
    known = status(sizes, ranks)
    hosts = (SimpleNamespace(name="here", ended=None),)
    return MeshSnapshot(part or whole, known, hosts, tuple(failures), AT, TAKEN)


class FakeChannel:
    """Keeps what pages say."""

    def __init__(self, hub: FakeHub, send: Callable[[Any], None]) -> None:
        self.hub, self.send = hub, send
        self.heard: list[Any] = []

    def receive(self, message: Any) -> None:
        self.heard.append(message)

    def close(self) -> None:
        self.hub.channels.remove(self)


class FakeHub:
    """Channels that nobody reads. `tell` sends from a thread of its own, as the hub does."""

    def __init__(self) -> None:
        self.channels: list[FakeChannel] = []

    def open(self, send: Callable[[Any], None]) -> FakeChannel:
        channel = FakeChannel(self, send)
        self.channels.append(channel)
        return channel

    def tell(self, message: Any, every_s: float = 0.0, times: int = 1) -> None:
        def work() -> None:
            gap = threading.Event()
            for number in range(times):
                for channel in list(self.channels):
                    channel.send({**message, "n": number})
                gap.wait(every_s)

        threading.Thread(target=work, daemon=True).start()


def snapshot_of(meshes: Sequence[Any], looks: list[float] | None = None) -> Callable[[], Any]:
    """The state of fake meshes: each rank is busy where a cell runs on it."""

    def snapshot() -> Any:
        if looks is not None:
            looks.append(time.monotonic())
        found = [_status_of(mesh) for mesh in meshes if not mesh.stopped]
        hosts = (SimpleNamespace(name="here", ended=None),)
        return SimpleNamespace(meshes=tuple(found), hosts=hosts, at=time.monotonic())

    return snapshot


def _status_of(mesh: Any) -> Any:
    runs = [run for _, run in mesh.control.runs if run.mesh.whole is mesh]
    busy = {rank for run in runs for rank in run.pending}
    ranks = [rank(each, "busy" if each in busy else "idle") for each in mesh.ranks]
    return status(dict(mesh.sizes), ranks, mesh.name)


def dress(shell: Any, front: str) -> FakeHub:
    """Give the session of a shell a hub, its fake client what is looked at, and widgets a front end
    of two lines in the folder `front`."""
    Path(front, "widget.js").write_text("export default { render() {} };\n")
    Path(front, "mesh.css").write_text(".mnb-root {}\n")
    assets.FRONT = Path(front)
    session = session_of(shell)
    hub = FakeHub()
    session.showing = Showing(shell, session.control, hub.open)
    shell.display_formatter.mimebundle_formatter.for_type(FakeMesh, session.showing.bundle)
    client = session.control.client
    client.snapshot = snapshot_of(session.control.meshes)
    client.failures = SimpleNamespace(of=lambda name: ())
    return hub
