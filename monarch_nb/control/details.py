"""What ranks tell of themselves when they are asked, and where their threads are.

Rules of the file: asking waits no longer than it is told to, whatever ranks do; who does not answer
is missing. A rank that has not answered the last time is not asked again before it has: one that is
stopped is not buried in questions. Not to be called in the inbox thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.actors import envelope
from monarch_nb.actors.proc import Waiter, json_of
from monarch_nb.control.stopping import MAIN_LOOP, dumps
from monarch_nb.core.folding import fold_outputs
from monarch_nb.core.records import is_internal
from monarch_nb.core.stacks import Frame, is_of_python, threads

if TYPE_CHECKING:
    from monarch_nb.actors.exits import Exit
    from monarch_nb.actors.proc import Proc
    from monarch_nb.actors.proc_mesh import ProcMesh, ProcsState
    from monarch_nb.core.frames import Message

WRITE_S: Final = 0.1
"""How long ranks are given to write where they are; on a busy machine, milliseconds."""
_OUR_CLASSES: Final = "monarch_nb."


class _Question(Waiter):
    """Put to any number of ranks. It stays until the last of them has answered or died, also when
    nobody waits for it any more."""

    __slots__ = ("_all", "_owing", "_port", "_proc", "answers", "is_given_up")

    def __init__(self, proc: Proc, sinces: Mapping[int, int]) -> None:
        self.answers: dict[int, dict[str, Any]] = {}
        self.is_given_up = False
        self._proc = proc
        self._owing = set(sinces)
        self._all = threading.Event()
        self._port = proc.new_port()
        proc.ports[self._port] = self.deliver
        for process, since in sinces.items():
            proc.control(process, "details", {"since": since}, reply=self._port)
        for process in self._owing & proc.dead.keys():
            self._settle(process)

    def wait(self, timeout_s: float) -> dict[int, dict[str, Any]]:
        """The answers that have come by then."""
        if self._owing:
            self._all.wait(timeout_s)
        self.is_given_up = True
        return dict(self.answers)

    def deliver(self, message: Message) -> None:
        """Inbox thread."""
        if message.source in self._owing:
            self.answers[message.source] = json_of(message)
        self._settle(message.source)

    def waits_for(self, process: int) -> bool:
        return process in self._owing

    def lost(self, ended: Exit) -> None:
        self._settle(ended.process)

    def abandon(self, ended: Exit) -> None:  # noqa: ARG002  this process leaves
        for process in list(self._owing):
            self._settle(process)

    def _settle(self, process: int) -> None:
        self._owing.discard(process)
        if not self._owing:
            self._proc.ports.pop(self._port, None)
            self._all.set()


def ask(proc: Proc, sinces: Mapping[int, int], timeout_s: float) -> dict[int, dict[str, Any]]:
    """Process to what it tells of itself (verb `details` of docs/protocol.md).

    Args:
        sinces: processes, each with the number of the last error of its that is known.
    """
    owing = [each for each in proc.waiters() if isinstance(each, _Question) and each.is_given_up]
    asked = {
        process: since
        for process, since in sinces.items()
        if process not in proc.dead and not any(each.waits_for(process) for each in owing)
    }
    return _Question(proc, asked).wait(timeout_s) if asked else {}


def actors_of(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The actors of a rank that are the user's: name, cls, calls, failed, queue, current."""
    keys = ("name", "cls", "calls", "failed", "queue", "current")
    return [
        {key: each[key] for key in keys} | {"cls": each["cls"].rpartition(".")[2]}
        for each in details.get("actors", ())
        if not each["cls"].startswith(_OUR_CLASSES)
    ]


def actor_totals(
    state: ProcsState, details: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Of each actor mesh on these processes: name, cls, size, calls, failed, queue, ended.

    Those that the controller has spawned come first, also where no rank has answered; then those
    that live there and were spawned by others.
    """
    found: dict[int, dict[str, Any]] = {
        each.number: _total(each.name, each.cls.__qualname__, len(each.processes), each.ended)
        for each in list(state.actors)
        if not each.internal and not each.cls.__module__.startswith(_OUR_CLASSES)
    }
    known = found.keys() | {each.number for each in list(state.actors)}
    for process, told in details.items():
        for actor in told.get("actors", ()) if process in state.processes else ():
            total = found.get(actor["port"])
            if total is None:
                if actor["port"] in known or actor["cls"].startswith(_OUR_CLASSES):
                    continue
                total = found[actor["port"]] = _total(actor["name"], actor["cls"], 0, None)
            if actor["port"] not in known:
                total["size"] += 1
            for key in ("calls", "failed", "queue"):
                total[key] += actor[key]
    return list(found.values())


def _total(name: str, cls: str, size: int, ended: str | None) -> dict[str, Any]:
    total: dict[str, Any] = {"name": name, "cls": cls.rpartition(".")[2], "size": size}
    return {**total, "calls": 0, "failed": 0, "queue": 0, "ended": ended}


# ------------------------------------------------------------------------------------------ stacks


def stacks(
    proc: Proc, mesh: ProcMesh, ranks: Iterable[int], answer_s: float = 1.0
) -> list[tuple[tuple[int, ...], str]]:
    """Where these ranks are: the stack of every thread that runs code of the user's, the innermost
    call last, equal ones once. "idle" for a rank without any.

    Works also while C code holds the interpreter. Ranks that are stopped or lost are missing.
    """
    found = dumps(proc, mesh, ranks, WRITE_S, answer_s)
    texts = {rank: _text(dump) for rank, dump in found.items() if dump}
    return [(group.ranks, texts[group.ranks[0]]) for group in fold_outputs(texts)]


def _text(dump: str) -> str:
    found = threads(dump)
    found.sort(key=lambda frames: not _is_main(frames))
    stacks = [(_is_main(frames), _users(frames)) for frames in found]
    parts = [
        ("" if is_main else "another thread:\n") + "\n".join(map(_line, frames))
        for is_main, frames in stacks
        if frames
    ]
    return "\n\n".join(parts) or "idle"


def _is_main(frames: list[Frame]) -> bool:
    return any(frame.file.endswith(MAIN_LOOP) for frame in frames)


def _users(frames: list[Frame]) -> list[Frame]:
    """Without ours and what these call in Python's library, outermost first."""
    shown, is_inside = [], True
    for frame in reversed(frames):
        is_ours = is_internal(frame.file)
        is_inside = is_ours or (is_inside and is_of_python(frame.file))
        if not is_inside:
            shown.append(frame)
    return shown


def _line(frame: Frame) -> str:
    place, text = envelope.place(frame.file, frame.line)
    return f"  {place}, in {frame.function}" + (f"\n    {text}" if text else "")
