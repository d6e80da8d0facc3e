"""pdb for a rank: all of its commands, asked for and answered through a channel.

Rules of the file: it stops in the user's code and in what that calls, never in what runs it; when
the outermost frame of the user's ends, tracing ends too, so that the next call is as fast as ever.
Where breakpoints of pdb's own (`b 41`) are left, the thread stays traced until they are cleared.
"""

from __future__ import annotations

import bdb
import contextlib
import dis
import inspect
import pdb  # noqa: T100  this is the debugger
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Literal, Self

from monarch_nb.core.errors.records import is_internal
from monarch_nb.core.hangs.stacks import is_of_python
from monarch_nb.worker.debug.channel import DebugChannel

_MACHINERY: Final = (
    "monarch_nb",
    "monarch_nb.*",
    "asyncio.*events",
    "asyncio.runners",
    "selectors",
)
_SUSPENDED: Final = {"YIELD_VALUE", "RESUME"}  # the latter in Python 3.13
_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
NO_INTERACT: Final = (
    "interact needs a terminal of its own, which a rank does not have. "
    "Type statements here, with ! before those that look like commands"
)
NO_STEP: Final = "it has failed here and goes nowhere; up, down, p and ! work, c or q ends this"
_STEPS: Final = frozenset(["s", "step", "n", "next", "unt", "until", "r", "return", "j", "jump"])
QUIT: Final = "quit in the debugger"
NO_RUN: Final = "a rank's cell or call cannot be started again from here; run the cell again"


def _ended_frame() -> FrameType:
    return sys._getframe()


_NOWHERE: Final = _ended_frame()

ExcInfo = tuple[type[BaseException], BaseException, TracebackType]
Trace = Any  # what follows a frame; only the stubs have a name for it
Pause = Callable[["RankPdb", FrameType], None]
Resume = Callable[["RankPdb"], None]


def users_frames(frames: Iterable[FrameType]) -> Iterator[FrameType]:
    """Find among frames, outermost first, those of the user and of what that calls."""
    is_inside = True
    for frame in frames:
        file = frame.f_code.co_filename
        is_ours = is_internal(file)
        is_inside = is_ours or (is_inside and is_of_python(file))
        if not is_inside:
            yield frame


class RankPdb(pdb.Pdb):
    """One debugger of one thread.

    `paused` is called when it stops in a frame, `resumed` when the code goes on.
    """

    def __init__(self, channel: DebugChannel, paused: Pause, resumed: Resume) -> None:
        terminal: Any = channel
        super().__init__(skip=_MACHINERY, nosigint=True, stdin=terminal, stdout=terminal)
        self.use_rawinput = False
        self.is_asking = False
        self.kind = "breakpoint"
        self._looking: AbstractContextManager[None] = nullcontext()
        self.channel = channel
        self._paused = paused
        self._resumed = resumed
        self._outermost: FrameType | None = None
        self._failing: FrameType | None = None  # an exception goes through it
        self._is_stepping = False
        channel.attach(lambda: self.prompt, self.completions)

    def of_kind(self, kind: str, looking: AbstractContextManager[None]) -> Self:
        """Use this debugger for something else than a breakpoint: `failure` or `post-mortem`. What
        is done while it asks (`looking`) has ended when it says that it goes on."""
        self.kind = kind
        self._looking = looking
        return self

    # where it stops

    @property
    def stopped_at(self) -> int:
        return int(self.stack[self.curindex][1]) if self.stack else 0

    def begin(self, frame: FrameType) -> None:
        """Stop at the next line of a frame of this thread."""
        super().set_trace(frame)
        self._is_stepping = True

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        kept = set(map(id, users_frames(frame for frame, _ in stack)))
        shown = [entry for entry in stack if id(entry[0]) in kept] or stack
        return shown, max(0, len(shown) - (len(stack) - index))

    def interaction(self, frame: FrameType | None, tb: TracebackType | None, *rest: Any) -> None:
        """Ask, until a command lets the code go on."""
        if frame is None and self.kind == "breakpoint":  # `pdb.post_mortem` of the user's
            self.kind = "failure"
        if self.is_asking:  # the debugger's own expression has come to a breakpoint
            super().interaction(frame, tb, *rest)
            return
        self._is_stepping = False
        self._outermost = None
        self.is_asking = True
        try:
            with self._looking:
                super().interaction(frame, tb, *rest)
        finally:
            self.is_asking = False
            self.forget()
            if self.kind != "breakpoint":
                self._is_stepping = False
            if not self._is_stepping:
                self._rest()
            self._resumed(self)
            self.channel.end(stepping=self._is_stepping or self._looks_for_breaks())

    def forget(self) -> None:
        """Keep no frame that was looked at, and leave no names in it: those of a cell are the
        user's. After an interrupt pdb would keep all frames."""
        for frame, _ in getattr(self, "stack", ()):
            frame.f_globals.pop("__pdb_convenience_variables", None)
            is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
            names: object = {} if is_function else frame.f_locals
            if isinstance(names, dict):  # while it runs a comprehension, Python 3.13 has none here
                names.pop("__return__", None)
                names.pop("__exception__", None)
        super().forget()
        self.curframe_locals = {}

    def setup(self, f: FrameType | None, tb: TracebackType | None) -> Any:
        done = super().setup(f, tb)
        if self.curframe is not None:
            self._outermost = _first_of_users(self.curframe)
            self._paused(self, self.curframe)
        return done

    def _cmdloop(self) -> None:
        # pdb's would go on asking after a KeyboardInterrupt; here it is the stop button
        self.cmdloop()

    def stop_here(self, frame: FrameType) -> bool:
        return super().stop_here(frame) and not self._is_machinery(frame)

    def _is_machinery(self, frame: FrameType) -> bool:
        """Whether it is ours, or the user's code has called something of ours, which has called
        this."""
        if _is_ours(frame):
            return True
        ours = next(filter(_is_ours, _outward(frame)), None)
        return ours is not None and any(at is self._outermost for at in _outward(ours))

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Trace:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            raise bdb.BdbQuit(QUIT) from None

    def user_exception(self, frame: FrameType, exc_info: ExcInfo) -> None:
        """Stop at an exception, but not at one by which a coroutine or its loop tells that
        something has ended: that is no error of the user's."""
        is_end = issubclass(exc_info[0], StopIteration | GeneratorExit) and exc_info[2] is None
        if self._is_machinery(frame):
            return
        if not is_end:
            super().user_exception(frame, exc_info)
        elif self.stoplineno == -1 and self.stopframe is not self.botframe:
            self.set_step()  # `return` from a coroutine: it has, so on where it was awaited

    def dispatch_line(self, frame: FrameType) -> Trace:
        self._failing = None
        return super().dispatch_line(frame)

    def dispatch_exception(self, frame: FrameType, arg: Any) -> Trace:
        if not issubclass(arg[0], StopIteration):  # that is how an `await` ends
            self._failing = frame
        return super().dispatch_exception(frame, arg)

    def dispatch_return(self, frame: FrameType, arg: Any) -> Trace:
        is_suspended = frame is not self._failing and _is_suspended(frame)
        self._failing = None
        if self.stopframe is None and is_suspended:
            self._set_stopinfo(frame, None)  # step: on where it awaits
            return self.trace_dispatch
        is_outermost = frame is self._outermost
        traced = super().dispatch_return(frame, arg)
        if is_outermost and not is_suspended:
            self._end_of_users_code()
            return None
        caller = frame.f_back
        if self.stopframe is None and caller is not None and caller.f_trace is None:
            caller.f_trace = self.trace_dispatch  # a coroutine that was resumed is not traced
        return traced

    def _end_of_users_code(self) -> None:
        # Whatever was said last: what runs the user's code is not stepped through
        self.botframe = _NOWHERE
        self.set_continue()
        self._rest()
        self.channel.end(stepping=False)

    def _looks_for_breaks(self) -> bool:
        return bool(self.breaks) and self.kind == "breakpoint" and not self.quitting

    def _rest(self) -> None:
        self._outermost = None
        if not self.breaks:
            untrace(self)

    # whether it goes on by itself

    def _set_stopinfo(self, *args: object, **options: object) -> None:
        super()._set_stopinfo(*args, **options)  # type: ignore[misc]  # of no stub
        self._is_stepping = self.stopframe is not self.botframe

    def onecmd(self, line: str) -> bool:
        name = self.parseline(line)[0]
        if self.kind != "breakpoint" and name in _STEPS:
            self.message(NO_STEP)
            return False
        return bool(super().onecmd(line))

    # commands that need a terminal, or mean something else here

    def do_interact(self, arg: str) -> None:
        del arg
        self.message(NO_INTERACT)

    def do_run(self, arg: str) -> bool | None:
        del arg
        self.message(NO_RUN)
        return None

    do_restart = do_run

    def do_break(self, arg: str, temporary: Literal[0, 1] | bool = 0) -> bool | None:
        """Do as pdb does, which would find out that a condition is wrong when it is too late."""
        if self._is_condition(arg.partition(",")[2]):
            super().do_break(arg, temporary)
        return None

    do_b = do_break

    def do_condition(self, arg: str) -> bool | None:
        """Do as pdb does, for conditions that can be evaluated."""
        if self._is_condition(arg.partition(" ")[2]):
            super().do_condition(arg)
        return None

    def _is_condition(self, text: str) -> bool:
        try:
            compile(text.strip() or "True", "<condition>", "eval")
        except SyntaxError as error:
            self.message(f"*** the condition {text.strip()!r} cannot be read: {error.msg}")
            return False
        return True

    def do_quit(self, arg: str) -> bool | None:
        """quit: end the cell or call of this rank with `BdbQuit`."""
        del arg
        self._user_requested_quit = True
        self.set_quit()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802  pdb's name
        return self.do_quit(arg)

    def do_clear(self, arg: str) -> bool | None:
        """Do as pdb does, which would ask a terminal whether all are meant."""
        if arg:
            return super().do_clear(arg)
        self.channel.write("Clear all breaks? ")
        if self.channel.readline().strip().lower() in ("y", "yes"):
            numbers = [each.number for each in bdb.Breakpoint.bpbynumber if each]
            self.clear_all_breaks()
            self.message(f"Deleted breakpoints {', '.join(map(str, numbers))}")
        return None

    do_cl = do_clear

    # completion

    def completions(self, line: str) -> list[str]:
        text = line.lstrip()
        begin = max(text.rfind(char) for char in " \t\n`@#$%^&*()=+[{]}\\|;:'\",<>?") + 1
        word = text[begin:]
        name, rest, _ = self.parseline(text)
        if not begin and not rest:
            commands = [
                each
                for each in self.completenames(word, text, 0, len(word))
                if not each.startswith("EOF")
            ]
            return sorted({*commands, *self._expressions(word, text, begin)})
        special = getattr(self, f"complete_{name}", None) if begin else None
        with contextlib.suppress(Exception):  # a property of the user's may raise anything
            return sorted((special or self._expressions)(word, text, begin, len(text)) or ())
        return []

    def _expressions(self, word: str, line: str, begin: int, end: int = 0) -> list[str]:
        with contextlib.suppress(Exception):
            found: list[str] = self._complete_expression(word, line, begin, end)
            return found
        return []


def untrace(debugger: pdb.Pdb) -> None:
    """Trace this thread no longer, if that debugger has traced it."""
    traced = sys.gettrace()
    if getattr(traced, "__self__", None) is not debugger:
        return
    sys.settrace(None)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if getattr(frame.f_trace, "__self__", None) is debugger:
            frame.f_trace = None
        frame = frame.f_back


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return is_internal(frame.f_code.co_filename)


def _first_of_users(frame: FrameType) -> FrameType:
    # The outermost frame that has led to this one since something of ours called the user
    users = list(takewhile(lambda at: not _is_ours(at), _outward(frame)))
    own = [at for at in users if not is_of_python(at.f_code.co_filename)]
    return (own or users or [frame])[-1]


def _is_suspended(frame: FrameType) -> bool:
    code: CodeType = frame.f_code
    if not code.co_flags & _COROUTINE or frame.f_lasti < 0:
        return False
    return dis.opname[code.co_code[frame.f_lasti]] in _SUSPENDED
