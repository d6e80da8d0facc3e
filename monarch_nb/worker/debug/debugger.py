"""Debuggers on this rank: who stops, where, and how its prompt reaches the controller.

Rules of the file: `breakpoint()` and `pdb` stop the thread that called them, and only that; nothing
here runs, and no thread is traced, before that. A thread has one debugger, which it keeps. In a
forked child, which nobody hears, a breakpoint is passed over.
"""

from __future__ import annotations

import bdb
import builtins
import itertools
import os
import pdb  # noqa: T100  its prompts are the ones that are moved
import reprlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from monarch_nb.core.wire.messages import debug
from monarch_nb.core.wire.messages.codec import Done
from monarch_nb.core.wire.messages.debug import INPUT
from monarch_nb.debugger.inspecting import place_of
from monarch_nb.process.instance import CallContext, here
from monarch_nb.worker.cells.shell import forget_last_error
from monarch_nb.worker.debug.channel import DebugChannel
from monarch_nb.worker.debug.pdb import RankPdb

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.worker.debug.dap import Dap
    from monarch_nb.worker.status.board_writer import BoardWriter

NESTED: Final = "a breakpoint inside an expression of the debugger was passed over"
MAX_VARIABLES: Final = 20
MAX_FAILED: Final = 8
MAX_MESSAGE: Final = 2_000
POST_MORTEM: Final = "post-mortem"
NO_KEYBOARD: Final = (
    "a rank has no keyboard. Ask in a cell of the controller, without %%mesh: "
    "answer = input(), then %mesh put answer"
)
_short: Final = reprlib.Repr()
_short.maxstring = _short.maxother = 200


class Debugger:
    def __init__(
        self, hosting: Hosting, board: BoardWriter, dap: Dap, stopped: dict[int, DebugChannel]
    ) -> None:
        self._hosting = hosting
        self._proc = hosting.proc
        self._board = board
        self.dap = dap
        self._numbers = itertools.count(1)
        self._of_thread = threading.local()
        self._stopped = stopped  # by number; the other debugger looks at it
        self._questions: dict[int, DebugChannel] = {}  # of `input()`
        self._at_prompt: set[int] = set()  # threads
        self._class = self._made_class()
        self._passed: set[tuple[int, str, int]] = set()  # tag and line, where nobody can answer

    def install(self) -> None:
        """Stop at `breakpoint()` and `pdb`, unless the user has chosen another debugger; ask at
        `input()`.
        """
        vars(builtins)["input"] = self._input
        self._hosting.failed.make_room(MAX_FAILED)
        if "PYTHONBREAKPOINT" not in os.environ and sys.breakpointhook is sys.__breakpointhook__:
            sys.breakpointhook = pdb.set_trace = self._on_breakpoint
            vars(pdb)["Pdb"] = self._class

    # the inbox thread

    def on_input(self, wanted: debug.DebugInput, _: Message) -> None:
        """Hand a line to a prompt. One that has gone by now has said so."""
        channel = self._stopped.get(wanted.stop) or self._questions.get(wanted.stop)
        if channel is not None:
            channel.put(wanted)

    def ask_again(self, tag: Callable[[int], int]) -> None:
        """Ask a new controller all that is asked; `tag` is what it calls a cell."""
        for channel in [*self._stopped.values(), *self._questions.values()]:
            channel.ask_again(tag)

    def on_post_mortem(self, wanted: debug.OpenPostMortem, message: Message) -> None:
        kept = self._hosting.failed.last(wanted.tag)
        if kept is None:
            self._proc.answer(message, debug.PostMortemOpened())
            return
        debugger = self._looking_into(POST_MORTEM, kept.error)
        self._proc.answer(message, debug.PostMortemOpened(debugger.channel.number))
        args = (debugger, kept.error, kept.here)
        threading.Thread(
            target=self._post_mortem, args=args, name="monarch-post-mortem", daemon=True
        ).start()

    def on_stop_at_failure(self, wanted: debug.StopAtFailure, message: Message) -> None:
        self._hosting.failed.stop_with(self._stop_at_failure if wanted.on else None)
        self._proc.answer(message, Done())

    def on_forget_failed(self, _: debug.ForgetFailed, message: Message) -> None:
        self._hosting.failed.clear()
        forget_last_error()
        self._proc.answer(message, Done())

    # the thread that stops

    def _on_breakpoint(self, *_: object, header: str | None = None, **__: object) -> None:
        self._stop(sys._getframe(1), header)

    def _stop(self, frame: FrameType, header: str | None) -> None:
        if self._proc.links.forked:
            sys.stderr.write(f"{_place(frame)}: a child of a rank takes no input, going on\n")
            return
        if self.dap.is_attached:
            self.dap.stop_at(frame)
            return
        if self._is_passed(frame):
            return
        debugger = self._mine()
        if debugger.is_asking:
            debugger.message(NESTED)
            return
        if header is not None:
            debugger.message(header)
        debugger.begin(frame)

    def _input(self, prompt: object = "", /) -> str:
        # As the builtin, of the person in front of the cell
        if self._proc.links.forked or threading.get_ident() in self._at_prompt:
            raise EOFError(NO_KEYBOARD)
        frame = sys._getframe(1)
        channel = DebugChannel(next(self._numbers), self._tell)
        channel.stop(_about(frame, frame.f_lineno, INPUT), _refuse)
        channel.write(str(prompt))
        self._questions[channel.number] = channel
        self._board.pause(channel.number, place_of(frame))
        try:
            return channel.readline().removesuffix("\n")
        finally:
            self._board.unpause(channel.number)
            del self._questions[channel.number]
            channel.end(stepping=False)

    def _post_mortem(
        self, debugger: RankPdb, error: BaseException, caller: CallContext | None
    ) -> None:
        # Ask in the frames of an error, in this thread, until `quit` or `continue`
        here.set(caller)
        self._ask_where_it_failed(debugger, error)

    def _stop_at_failure(self, error: BaseException) -> None:
        # `%mesh pdb on`: the same in the thread that has failed, before anybody is told
        if self._proc.links.forked or isinstance(error, bdb.BdbQuit):
            return
        debugger = self._looking_into("failure", error)
        self._ask_where_it_failed(debugger, error)

    def _ask_where_it_failed(self, debugger: RankPdb, error: BaseException) -> None:
        debugger.message(f"{type(error).__name__}: {_shown_error(error)}")
        debugger.reset()
        debugger.interaction(None, error.__traceback__)

    def _looking_into(self, kind: str, error: BaseException) -> RankPdb:
        return self._class().of_kind(kind, self._hosting.failed.looking_into(error))

    def _mine(self) -> RankPdb:
        found: RankPdb | None = getattr(self._of_thread, "debugger", None)
        if found is None:
            found = self._of_thread.debugger = self._class()
        return found

    def _made_class(self) -> Callable[..., RankPdb]:
        """What stands in place of `pdb.Pdb`. A debugger that is made by another takes its channel;
        one with a terminal of its own is Python's."""
        service, python_pdb = self, pdb.Pdb

        class Pdb(RankPdb):
            def __new__(cls, *args: Any, **options: Any) -> Any:
                own = [*args[1:3], options.get("stdin"), options.get("stdout")]
                if all(each is None or isinstance(each, DebugChannel) for each in own):
                    return super().__new__(cls)
                return python_pdb(*args, **options)

            def __init__(self, *args: object, **_: object) -> None:
                inherited = [each for each in args if isinstance(each, DebugChannel)]
                made = inherited or [DebugChannel(next(service._numbers), service._tell)]
                super().__init__(made[0], service._paused, service._resumed)

        return Pdb

    def _paused(self, debugger: RankPdb, frame: FrameType) -> None:
        channel = debugger.channel
        self._stopped[channel.number] = channel
        self._at_prompt.add(threading.get_ident())
        about = _about(frame, debugger.stopped_at, debugger.kind)
        channel.stop(about, lambda: self._pass_over(frame))
        if debugger.kind != POST_MORTEM:  # that holds nobody up
            self._board.pause(channel.number, place_of(frame))

    def _resumed(self, debugger: RankPdb) -> None:
        self._stopped.pop(debugger.channel.number, None)
        self._at_prompt.discard(threading.get_ident())
        debugger.channel.resume()
        self._board.unpause(debugger.channel.number)

    def _tell(self, event: debug.DebugEvent) -> None:
        if self._hosting.flush_output is not None:
            self._hosting.flush_output()
        self._proc.control(self._proc.controller, event)
        self._proc.links.flush()

    # where nobody can answer

    def _is_passed(self, frame: FrameType) -> bool:
        return bool(self._passed) and _key(frame) in self._passed

    def _pass_over(self, frame: FrameType) -> None:
        self._passed.add(_key(frame))
        lines = [f"breakpoint in {_place(frame)}: nobody can type here, going on", *_state(frame)]
        sys.stderr.write("\n".join(lines) + "\n")


def _about(frame: FrameType, line: int, kind: str) -> dict[str, object]:
    caller = here.get()
    return {
        "tag": caller.tag if caller is not None else 0,
        "what": _what(caller),
        "thread": threading.current_thread().name,
        "kind": kind,
        "file": frame.f_code.co_filename,
        "line": line,
        "function": frame.f_code.co_name,
    }


def _refuse() -> NoReturn:
    raise EOFError(NO_KEYBOARD)


def _key(frame: FrameType) -> tuple[int, str, int]:
    caller, code = here.get(), frame.f_code
    return 0 if caller is None else caller.tag, code.co_filename, code.co_firstlineno


def _what(caller: CallContext | None) -> str:
    if caller is None or not caller.method:
        return "cell"
    return f"{caller.instance.name}.{caller.method}"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name}(), line {frame.f_lineno}"


def _shown_error(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE]
    except Exception:  # noqa: BLE001  the `__str__` is the user's
        return ""


def _state(frame: FrameType) -> Iterator[str]:
    # The variables, some of them, a line each; of a module, those that its code names
    known = frame.f_locals
    is_module = frame.f_code.co_name == "<module>"
    names = [name for name in (frame.f_code.co_names if is_module else known) if name in known]
    for name in names[:MAX_VARIABLES]:
        yield f"  {name} = {_shown(frame.f_locals[name])}"
    if len(names) > MAX_VARIABLES:
        yield f"  ... {len(names) - MAX_VARIABLES} more variables"


def _shown(value: object) -> str:
    try:
        return _short.repr(value)
    except Exception as error:  # noqa: BLE001  the `__repr__` is the user's
        return f"<{type(error).__name__} in its __repr__>"
