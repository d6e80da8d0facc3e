"""Debuggers on ranks: prompts of pdb, and the Debug Adapter Protocol."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from monarch_nb.core.wire.messages.codec import ControlMessage, Done, Request

INPUT: Final = "input"
"""The `kind` of a stop that is no debugger's: the rank waits for the line of an `input()`."""


class DebugInput(ControlMessage, verb="debug_do"):
    """For the debugger numbered `stop`: a typed `line`, one to `complete`, or `pass`."""

    stop: int
    seq: int
    kind: str
    line: str = ""


class DebugEvent(ControlMessage, verb="debug"):
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


class OpenPostMortem(Request[PostMortemOpened], verb="post_mortem"):
    """Stand in the frames of the last failure; of a notebook cell, if its `tag` is given."""

    tag: int | None = None


class StopAtFailure(Request[Done], verb="stop_at_failure"):
    """From now on, or no longer."""

    on: bool


class ForgetFailed(Request[Done], verb="forget_failed"):
    """Let go of the frames of failures."""


class DapEnded(NamedTuple):
    """Why the session of the visual debugger has ended."""

    ended: str


class OpenDap(Request[DapEnded], verb="dap_open"):
    """Attach the visual debugger. Answered at the end of its session."""


class DapResponse(NamedTuple):
    """A response of the Debug Adapter Protocol."""

    message: dict[str, Any]


class DapRequest(Request[DapResponse], verb="dap"):
    """A request of the Debug Adapter Protocol."""

    message: dict[str, Any]


class CloseDap(Request[Done], verb="dap_close"):
    """Detach; answered when that is done."""


class DapEvent(ControlMessage, verb="dap_event"):
    """From a rank that is debugged; `{"event": "opened"}` first."""

    message: dict[str, Any]
