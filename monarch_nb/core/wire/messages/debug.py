"""Debuggers on ranks: prompts of pdb, and the Debug Adapter Protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch_nb.core.wire.messages.codec import Done, verb


@verb("debug_do")
class DebugInput(NamedTuple):
    """For the debugger numbered `stop`: a typed `line`, one to `complete`, or `pass`."""

    stop: int
    seq: int
    kind: str
    line: str = ""


@verb("debug")
class DebugEvent(NamedTuple):
    """From a rank: its debugger asks, goes on, or completes a word.

    `event`: "asks" (for a line; `text` was said since the last, and it stands at `file`, `line`),
    "goes" (`stepping`: to stop again or to end) or "completes" (`words`).
    """

    event: str
    stop: int
    seq: int
    text: str = ""
    prompt: str = ""
    tag: int = 0
    what: str = ""
    thread: str = ""
    kind: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    stepping: bool = False
    words: list[str] | None = None


class PostMortemOpened(NamedTuple):
    """The number of the debugger; None: nothing has failed."""

    stop: int | None = None


@verb("post_mortem")
class OpenPostMortem(NamedTuple):
    """Stand in the frames of the last failure; of a notebook cell, if its `tag` is given."""

    tag: int | None = None

    def answer(self) -> type[PostMortemOpened]:
        return PostMortemOpened


@verb("stop_at_failure")
class StopAtFailure(NamedTuple):
    """From now on, or no longer."""

    on: bool

    def answer(self) -> type[Done]:
        return Done


@verb("forget_failed")
class ForgetFailed(NamedTuple):
    """Let go of the frames of failures."""

    def answer(self) -> type[Done]:
        return Done


class DapEnded(NamedTuple):
    """Why the session of the visual debugger has ended."""

    ended: str


@verb("dap_open")
class OpenDap(NamedTuple):
    """Attach the visual debugger. Answered at the end of its session."""

    def answer(self) -> type[DapEnded]:
        return DapEnded


class DapResponse(NamedTuple):
    """A response of the Debug Adapter Protocol."""

    message: dict[str, Any]


@verb("dap")
class DapRequest(NamedTuple):
    """A request of the Debug Adapter Protocol."""

    message: dict[str, Any]

    def answer(self) -> type[DapResponse]:
        return DapResponse


@verb("dap_close")
class CloseDap(NamedTuple):
    """Detach; answered when that is done."""

    def answer(self) -> type[Done]:
        return Done


@verb("dap_event")
class DapEvent(NamedTuple):
    """From a rank that is debugged; `{"event": "opened"}` first."""

    message: dict[str, Any]
