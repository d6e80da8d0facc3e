"""JupyterLab's debugger, for the controller or for ranks of a mesh.

Rules of the file: what the front end says goes to a `RankSession`, whose one debuggee may be the
controller; of ipykernel's debugger nothing is used but what looks at the controller's variables
while nothing is stopped, and it never starts debugpy. A target that changes while a front end is
attached is left in order, the new one gets the breakpoints, and the front end keeps its session.
All of it runs on the Control thread's loop, which waits for no cell.
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import contextlib
import json
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from ipykernel.debugger import Debugger

from monarch_kernel.cell_names import PREFIX, cell_file
from monarch_kernel.debug.controller import Controller, ControllerLink
from monarch_kernel.debug.rank_session import (
    HERE,
    Link,
    Message,
    RankSession,
    refusal,
    thread_number,
)
from monarch_nb.debugger.cell_files import CellFiles
from monarch_nb.notebook.debug import target as debugging
from monarch_nb.notebook.debug.target import CONTROLLER, Choice
from monarch_nb.notebook.session import session_of

_Debugger: Any = Debugger  # its types are incomplete

MOVE_S: Final = 8.0
"""How long `%mesh debugger` waits until the new target is attached."""
_RICH: Final = "__import__('monarch_nb.debugger.inspecting', fromlist=['rich']).rich({name})"
_ALWAYS: Final = {"initialize", "debugInfo", "disconnect"}
_OF_CONTROLLER: Final = {"inspectVariables", "variables", "richInspectVariables", "modules"}
"""What ipykernel answers about the controller while nothing is stopped, on or off."""
_EMPTY: Final[Message] = {"data": {}, "metadata": {}}
_INITIALIZE: Final = {
    "clientID": "monarch_nb",
    "adapterID": "",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
}

Handler = Callable[[Message], Coroutine[Any, Any, Message]]


class RankDebugger(_Debugger):  # type: ignore[misc]  # untyped base
    """One front end's debugger; its target is what `%mesh debugger` says."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.breakpoint_list: dict[str, object] = {}
        self.stopped_threads: Collection[int] = set()
        self._files = CellFiles()
        atexit.register(self._files.remove)
        self._ranks: RankSession | None = None
        self._target: Choice = CONTROLLER
        self._asked: dict[str, Message] = {}  # what a new target has to be told
        self._breakpoints: dict[str, Message] = {}
        self._cells: dict[str, Message] = {}  # by path: what a rank has to be told of them
        self._capabilities: Message = {}
        self._turn = asyncio.Lock()
        self._seq = 1_000_000
        self._own: dict[str, Handler] = {
            "initialize": self._initialize,
            "attach": self._attach,
            "configurationDone": self._nothing_to_do,
            "disconnect": self._disconnect,
            "debugInfo": self.debugInfo,
            "dumpCell": self._dump_cell,
            "threads": self._threads,
            "setBreakpoints": self._set_breakpoints,
            "setExceptionBreakpoints": self._set_exception_breakpoints,
            "inspectVariables": self._variables,
            "variables": self._variables,
            "richInspectVariables": self._rich,
            "copyToGlobals": self._copy,
            "source": self._source,
        }

    def serve(
        self, shell: Any, is_busy: Callable[[], bool], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Follow what the shell's session chooses. `is_busy` says whether a cell runs."""
        debugging.keep_empty_lines(shell)
        self.controller = Controller(shell, is_busy, self.kernel_modules)
        session = session_of(shell)
        self._debugging = None if session is None else session.debugging
        self._loop = loop
        if self._debugging is not None:
            self._debugging.follow(self)

    async def process_request(self, message: Message) -> Message:
        """Answer the front end."""
        async with self._turn:
            return await self._process(message)

    async def _process(self, message: Message) -> Message:
        command = message["command"]
        self._remember(command, message)
        if command == "initialize" and not self.is_started:
            self._target = self._debugging.chosen if self._debugging else CONTROLLER
        if self._target == CONTROLLER and command in _OF_CONTROLLER and not self._is_stopped:
            self.stopped_threads = set()
            told: Message = await self.static_debug_handlers.get(command, self.variables)(message)
            return _reply(message, {"success": True, **told})
        if not self.is_started and command not in _ALWAYS:
            return _reply(message, refusal(command, "the debugger is off"))
        handler = self._own.get(command, self._forward)
        return _reply(message, await handler(message))

    def _remember(self, command: str, message: Message) -> None:
        if command == "setBreakpoints":
            self._breakpoints[message["arguments"]["source"]["path"]] = message
        elif command in {"initialize", "setExceptionBreakpoints"}:
            self._asked[command] = message
        elif command == "disconnect":
            self._breakpoints.clear()
            self._cells.clear()
            self._asked.clear()

    # -------------------------------------------------------------------------- begin and end

    async def _initialize(self, message: Message) -> Message:
        if self._target.is_off:
            return refusal("initialize", "%mesh debugger is off. Type: %mesh debugger all")
        if self._ranks is None:
            try:
                return await self._open(message["arguments"])
            except RuntimeError as error:
                return refusal("initialize", str(error))
        return self._capabilities  # another page of the same notebook

    async def _open(self, arguments: Message) -> Message:
        whom = self._target.ranks or (HERE,)
        session = RankSession(whom, self._link, self.event_callback, self._over)
        await session.open()
        self._ranks, self.is_started = session, True
        self._capabilities = await session.attach({**_INITIALIZE, **arguments})
        return self._capabilities

    def _link(
        self, rank: int, on_event: Callable[[Message], None], on_end: Callable[[str], None]
    ) -> Link:
        if rank == HERE:
            return ControllerLink(self.controller, on_event, on_end)
        assert self._debugging is not None
        return self._debugging.open(self._target, rank, on_event, on_end)

    async def _attach(self, _: Message) -> Message:
        # Done already, before the front end knew of it: its next breakpoint is to count
        self._event("initialized", {})
        return {"success": True, "body": {}}

    async def _nothing_to_do(self, _: Message) -> Message:
        return {"success": True, "body": {}}

    async def _disconnect(self, _: Message) -> Message:
        await self._leave()
        self.breakpoint_list = {}
        return {"success": True, "body": {}}

    async def _leave(self) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            await ranks.close()
        self.stopped_threads = set()
        self.is_started = False

    def _over(self) -> None:
        self._ranks = None
        self.stopped_threads = set()
        self.is_started = False
        self._event("terminated", {})

    # ------------------------------------------------------------------------------- requests

    async def _forward(self, message: Message) -> Message:
        return await self._session.request(message["command"], message.get("arguments") or {})

    @property
    def _is_stopped(self) -> bool:
        return self._ranks is not None and bool(self._ranks.stopped)

    @property
    def _session(self) -> RankSession:
        assert self._ranks is not None
        return self._ranks

    async def debugInfo(self, message: Message) -> Message:  # noqa: N802  ipykernel's name
        """Return what the front end needs to know first."""
        if (ranks := self._ranks) is not None:
            threads = sorted(ranks.stopped, key=lambda each: each != ranks.focus)
            self.stopped_threads = [thread_number(*each) for each in threads]
        info: Message = await super().debugInfo(message)
        info["body"]["tmpFilePrefix"] = PREFIX
        return info

    async def _dump_cell(self, message: Message) -> Message:
        # Here and on the ranks' hosts: no breakpoint is set in a file that is missing
        dumped = await self.dumpCell(message)
        if not dumped["success"]:
            return dumped
        asked = self._cells[dumped["body"]["sourcePath"]]
        told = await self._session.tell_all("dumpCell", asked)
        return dumped if told["success"] else told

    async def dumpCell(self, message: Message) -> Message:  # noqa: N802  ipykernel's name
        """Write a cell here, whoever is debugged; those that will be need it too."""
        code = message["arguments"]["code"]
        path = cell_file(code)
        try:
            dumped = self._files.write(path, code)
        except OSError as error:
            return _reply(message, refusal("dumpCell", str(error)))
        self._cells[path] = {**message["arguments"], **dumped}
        return _reply(message, {"success": True, "body": dumped})

    async def _threads(self, _: Message) -> Message:
        return {"success": True, "body": {"threads": await self._session.threads()}}

    async def _set_breakpoints(self, message: Message) -> Message:
        arguments = message["arguments"]
        told = await self._session.tell_all("setBreakpoints", arguments)
        if told["success"]:
            lines = [{"line": each["line"]} for each in told["body"]["breakpoints"]]
            self.breakpoint_list[arguments["source"]["path"]] = lines
        return told

    async def _set_exception_breakpoints(self, message: Message) -> Message:
        return await self._session.tell_all("setExceptionBreakpoints", message["arguments"])

    async def _variables(self, message: Message) -> Message:
        told = await self._forward(message)
        found = told["body"].get("variables")
        if found is not None:
            told["body"]["variables"] = [one for one in found if self.accept_variable(one["name"])]
        return told

    async def _rich(self, message: Message) -> Message:
        # The display of a variable: of a stopped frame, or of the rank's cells
        asked = message["arguments"]
        name, frame = asked["variableName"], asked.get("frameId")
        if not name.isidentifier():
            return {"success": True, "body": _EMPTY}
        if not frame or not self._session.stopped:
            return await self._forward(message)
        arguments = {
            "expression": _RICH.format(name=name),
            "frameId": frame,
            "context": "clipboard",
        }
        told = await self._session.request("evaluate", arguments)
        if not told["success"]:
            return told
        return {"success": True, "body": _bundle(told["body"].get("result"))}

    async def _copy(self, message: Message) -> Message:
        asked = message["arguments"]
        names = asked["srcVariableName"], asked["dstVariableName"]
        if not all(name.isidentifier() for name in names):
            return refusal("copyToGlobals", "both names must be names of variables")
        arguments = {
            "expression": f"get_ipython().user_ns[{names[1]!r}]",
            "value": names[0],
            "frameId": asked["srcFrameId"],
        }
        return await self._session.request("setExpression", arguments)

    async def _source(self, message: Message) -> Message:
        # The rank's own: it may have another file there, or one that is not here
        told = await self._forward(message)
        return told if told["success"] else await super().source(message)

    # --------------------------------------------------------------------------- another target

    def doing(self) -> str:
        """Say to people whether it is on and what it has stopped. Any thread."""
        if not self.is_started:
            return "; it is off: the bug button of the notebook turns it on"
        ranks = self._ranks
        if ranks is None or not ranks.stopped:
            return "; it is on"
        if ranks.ranks == (HERE,):
            return "; it is on, and has stopped it"
        return f"; it is on, {debugging.stopped_words(ranks.stopped_ranks)}"

    def move_to(self, target: Choice) -> str:
        """Attach to that instead, if anything is attached. Any thread but the loop's."""
        moved = asyncio.run_coroutine_threadsafe(self._move(target), self._loop)
        try:
            return str(moved.result(MOVE_S))
        except TimeoutError:
            return "; it is not attached yet, some rank does not answer"

    async def _move(self, target: Choice) -> str:
        async with self._turn:
            was_on, started = self.is_started, self._asked.get("initialize")
            if was_on:
                await self._leave()
                self.breakpoint_list = {}
            self._target = target
            if target.is_off:
                self._event("terminated", {}) if was_on else None
                return ""
            if not was_on or started is None:
                return self.doing()
            return await self._enter(started)

    async def _enter(self, started: Message) -> str:
        told = await self._process(self._made("initialize", started["arguments"]))
        if not told.get("success"):
            self._event("terminated", {})
            return f", but it is off now: {told.get('message')}"
        await self._process(self._made("attach", {}))
        if self._ranks is not None:
            for asked in self._cells.values():
                await self._ranks.tell_all("dumpCell", asked)
        for message in self._wanted_stops():
            await self._process(self._made(message["command"], message["arguments"]))
        total = sum(len(each["arguments"]["breakpoints"]) for each in self._breakpoints.values())
        return f"; it is on, with {total} breakpoint{'' if total == 1 else 's'}"

    def _wanted_stops(self) -> list[Message]:
        # What the front end has asked for: its breakpoints, and what exceptions stop
        exceptions = self._asked.get("setExceptionBreakpoints")
        return [*self._breakpoints.values(), *([exceptions] if exceptions else [])]

    def rejoin(self, ranks: Sequence[int]) -> None:
        """Debug these too, which have been lost and are there again. Any thread but the loop's."""
        joined = asyncio.run_coroutine_threadsafe(self._join(ranks), self._loop)
        with contextlib.suppress(TimeoutError, RuntimeError):  # a little later, or gone again
            joined.result(MOVE_S)

    async def _join(self, ranks: Sequence[int]) -> None:
        async with self._turn:
            session, started = self._ranks, self._asked.get("initialize")
            if session is None or started is None:
                return
            for rank in await session.join(ranks, {**_INITIALIZE, **started["arguments"]}):
                for asked in self._cells.values():
                    await session.tell(rank, "dumpCell", asked)
                for message in self._wanted_stops():
                    await session.tell(rank, message["command"], message["arguments"])

    def look_at(self, rank: int) -> bool:
        """Show this one of the stopped ranks; False if it is none. Any thread."""
        ranks = self._ranks
        if ranks is None or rank not in ranks.stopped_ranks:
            return False
        self._loop.call_soon_threadsafe(ranks.look_at, rank)
        return True

    def _made(self, command: str, arguments: Message) -> Message:
        self._seq += 1
        return {"type": "request", "seq": self._seq, "command": command, "arguments": arguments}

    def _event(self, event: str, body: Message) -> None:
        self.event_callback({"type": "event", "event": event, "seq": 0, "body": body})


def _reply(message: Message, response: Message) -> Message:
    seq = message["seq"]
    return {**response, "type": "response", "command": message["command"], "request_seq": seq,
            "seq": seq}  # fmt: skip


def _bundle(result: object) -> Message:
    # What `_RICH` has said: JSON, in quotes. Never evaluated: a rank has written it.
    try:
        bundle = json.loads(ast.literal_eval(str(result)))
    except (ValueError, SyntaxError):
        return _EMPTY
    return {"data": bundle["data"], "metadata": bundle["metadata"]}
