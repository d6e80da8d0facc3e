"""The debuggers of some ranks as one debugger: requests go to the ranks they are for, events of all
come back as of one.

Rules of the file: everything runs on the Control thread's loop, and nothing there waits for a rank
for longer than `ANSWER_S`; each rank numbers its own threads, frames and variables, and a front end
gets numbers that mean one thing; a rank that has kept us waiting is not waited for again until it
speaks. A front end looks at one stopped thread, the focus; when that goes on, the next one that is
stopped takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

_SHIFT: Final = 20
_KEYS: Final = ("variablesReference", "frameId")

OPEN_S: Final = 15.0
"""The first time a rank imports the debugger, perhaps beside a cell that uses all its cores."""
ANSWER_S: Final = 5.0
STEP_S: Final = 0.1
"""A step that takes longer gives the focus to a rank that is stopped: it may wait for that one."""

HERE: Final = -1
"""Stands for the controller where ranks are numbered."""

Message = dict[str, Any]
"""Of the Debug Adapter Protocol."""
Thread = tuple[int, int]

_STEPS: Final = {"next", "stepIn", "stepOut"}
_NUMBERS: Final = ("threadId", "frameId", "variablesReference")
_EVENTS: Final = {"output", "thread"}  # that are passed on as they are


def name_of(rank: int) -> str:
    """Return whom this number means, for people."""
    return "the controller" if rank == HERE else f"rank {rank}"


def thread_number(rank: int, thread: int) -> int:
    """Return what a front end calls a thread of a rank."""
    return (rank - HERE + 1) << _SHIFT | thread


def thread_of(number: object) -> tuple[int, int] | None:
    """Return the rank and its thread; None for a number that is nobody's."""
    if not isinstance(number, int) or number < 1 << _SHIFT:
        return None
    return (number >> _SHIFT) + HERE - 1, number & ((1 << _SHIFT) - 1)


class Ids:
    """Numbers of frames and variables, which live as long as a rank is stopped."""

    def __init__(self) -> None:
        self._next = itertools.count(2)
        self._theirs: dict[int, tuple[int, int]] = {}
        self._ours: dict[tuple[int, int], int] = {}

    def number(self, rank: int, theirs: int) -> int:
        """Return what a front end calls it; 0 stays 0, which means nothing."""
        if not theirs:
            return 0
        key = rank, theirs
        if key not in self._ours:
            ours = self._ours[key] = next(self._next)
            self._theirs[ours] = key
        return self._ours[key]

    def of(self, number: object) -> tuple[int, int] | None:
        """Return the rank and its own number; None for one that is not valid any more."""
        return self._theirs.get(number) if isinstance(number, int) else None

    def forget(self, rank: int) -> None:
        """Forget the numbers of a rank that goes on."""
        for key in [key for key in self._ours if key[0] == rank]:
            del self._theirs[self._ours.pop(key)]

    def outward(self, rank: int, body: Any) -> Any:
        """Return what a rank has said, with our numbers."""
        if isinstance(body, list):
            return [self.outward(rank, each) for each in body]
        if not isinstance(body, dict):
            return body
        said = {key: self._said(rank, key, value) for key, value in body.items()}
        if "line" in said and "column" in said and "source" in said and "id" in said:  # a frame
            said["id"] = self.number(rank, said["id"])
        return said

    def _said(self, rank: int, key: str, value: Any) -> Any:
        translate: Callable[[int, int], int] | None = None
        if key in _KEYS:
            translate = self.number
        elif key == "threadId":
            translate = thread_number
        if translate is not None and isinstance(value, int):
            return translate(rank, value)
        return self.outward(rank, value)


class Link(Protocol):
    """The debugger in one rank, see `monarch_nb.control.debug.dap`, or in the controller."""

    @property
    def opened(self) -> Any: ...
    def request(self, command: str, arguments: Message) -> Any: ...
    def close(self) -> Any: ...


Open = Callable[[int, Callable[[Message], None], Callable[[str], None]], Link]


class RankSession:
    """`open_link(rank, on_event, on_end)` opens the debugger of a rank; `emit` gets events for the
    front end; `on_over` is called when no rank is left."""

    def __init__(
        self,
        ranks: Iterable[int],
        open_link: Open,
        emit: Callable[[Message], None],
        on_over: Callable[[], None],
    ) -> None:
        self.stopped: dict[Thread, Message] = {}
        """Bodies of their `stopped` events, in the order in which they came."""
        self.focus: Thread | None = None
        self._wanted = tuple(ranks)
        self._open_link = open_link
        self._emit = emit
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, Link] = {}
        self._late: set[int] = set()
        self._ids = Ids()
        self._closing = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that are attached, in order."""
        return tuple(sorted(self._links))

    @property
    def stopped_ranks(self) -> set[int]:
        """Any thread."""
        return {rank for rank, _ in list(self.stopped)}

    # begin and end

    async def open(self) -> None:
        """Attach to every rank. Raises `RuntimeError` if one cannot be; then to none."""
        try:
            await asyncio.wait_for(asyncio.gather(*self._open(self._wanted)), OPEN_S)
        except (RuntimeError, TimeoutError) as error:
            await self.close()
            why = str(error) or f"the ranks did not answer within {OPEN_S:g} s"
            raise RuntimeError(f"the visual debugger could not be attached: {why}") from None

    def _open(self, ranks: Iterable[int]) -> list[asyncio.Future[None]]:
        # Open the debuggers of these; each is done when it is there, or cannot be had
        opened = []
        for rank in ranks:
            link = self._links[rank] = self._open_link(rank, *self._listeners(rank))
            opened.append(asyncio.wrap_future(link.opened))
        return opened

    async def attach(self, initialize: Message) -> Message:
        """Shake hands with every rank; return what the debugger is capable of."""
        told = await asyncio.gather(*(self._shake_hands(rank, initialize) for rank in self.ranks))
        return _best(told, "initialize")

    async def _shake_hands(self, rank: int, initialize: Message) -> Message:
        told = await self.tell(rank, "initialize", initialize)
        if (link := self._links.get(rank)) is not None:
            for command in ("attach", "configurationDone"):  # the first is answered after the other
                link.request(command, {})
        await self.tell(rank, "threads", {})  # comes after it
        return told

    async def join(self, ranks: Iterable[int], initialize: Message) -> list[int]:
        """Attach to ranks that have been gone and are there again; to which that was possible."""
        missing = [rank for rank in ranks if rank in self._wanted and rank not in self._links]
        await asyncio.wait_for(asyncio.gather(*self._open(missing), return_exceptions=True), OPEN_S)
        joined = [rank for rank in missing if rank in self._links]
        await asyncio.gather(*(self._shake_hands(rank, initialize) for rank in joined))
        return joined

    async def close(self) -> None:
        """Detach: whatever is stopped goes on."""
        self._closing = True
        closed = [asyncio.wrap_future(link.close()) for link in self._links.values()]
        if closed:
            await asyncio.wait(closed, timeout=ANSWER_S)
        self._links.clear()
        self._all_go_on()

    def _listeners(self, rank: int) -> tuple[Callable[[Message], None], Callable[[str], None]]:
        # For the inbox thread
        def on_event(event: Message) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the kernel ends
                self._loop.call_soon_threadsafe(self._heard, rank, event)

        def on_end(why: str) -> None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended, rank, why)

        return on_event, on_end

    # requests

    async def request(self, command: str, arguments: Message) -> Message:
        """Answer a request of the front end; with `success` false if it cannot be done."""
        if command in _STEPS or command in {"continue", "pause"}:
            return await self._move(command, arguments)
        key = next((key for key in _NUMBERS if arguments.get(key)), None)
        if key is not None:
            of = thread_of if key == "threadId" else self._ids.of
            found = of(arguments[key])
            if found is None:
                return refusal(command, "this rank goes on already")
            return await self.tell(found[0], command, {**arguments, key: found[1]})
        return await self.tell(self.looks_at, command, arguments)

    @property
    def looks_at(self) -> int:
        """The rank that the front end looks at, stopped or not; one of those that are gone if all
        are."""
        if self.focus is not None:
            return self.focus[0]
        return min(self._links, default=self._wanted[0])

    async def tell(self, rank: int, command: str, arguments: Message) -> Message:
        """Ask one rank."""
        link = self._links.get(rank)
        if link is None:
            return refusal(command, "the rank is gone; see %mesh status")
        asked = asyncio.wrap_future(link.request(command, arguments))
        asked.add_done_callback(lambda _: self._late.discard(rank))
        limit_s = 0.0 if rank in self._late else ANSWER_S
        done, _ = await asyncio.wait([asked], timeout=limit_s)
        if not done:
            self._late.add(rank)
            return refusal(command, f"{name_of(rank)} does not answer: C code holds it")
        response = asked.result()
        body = self._ids.outward(rank, response.get("body") or {})
        if len(self._wanted) > 1:  # the front end shows frames, and no threads
            for frame in body.get("stackFrames", ()):
                frame["name"] = f"[{rank}] {frame['name']}"
        return {**response, "body": body}

    async def tell_all(self, command: str, arguments: Message) -> Message:
        """Ask every rank; the first good answer stands for all."""
        told = await asyncio.gather(*(self.tell(rank, command, arguments) for rank in self.ranks))
        return _best(told, command)

    async def threads(self) -> list[Message]:
        """Return the threads of all ranks, with the ranks in their names."""
        asked = self.ranks
        told = await asyncio.gather(*(self.tell(rank, "threads", {}) for rank in asked))
        return [
            {"id": thread_number(rank, each["id"]), "name": _thread_name(rank, each["name"])}
            for rank, answer in zip(asked, told, strict=True)
            for each in answer["body"].get("threads", ())
        ]

    async def _move(self, command: str, arguments: Message) -> Message:
        # Step, continue, pause: one thread, or what the front end means when it knows of none
        number = arguments.get("threadId")
        thread = thread_of(number)
        if command in _STEPS:
            thread = thread or self.focus
            if thread not in self.stopped:
                return refusal(command, "nothing is stopped")
            return await self._tell_thread(thread, command, arguments)
        if thread is not None:
            return await self._tell_thread(thread, command, arguments)
        ranks = {rank for rank, _ in self.stopped} if command == "continue" else set(self.ranks)
        asked = {**arguments, "threadId": 1}
        told = await asyncio.gather(*(self.tell(rank, command, asked) for rank in sorted(ranks)))
        good = [each for each in told if each["success"]]
        return (good or told or [refusal(command, "nothing is stopped")])[0]

    async def _tell_thread(self, thread: Thread, command: str, arguments: Message) -> Message:
        return await self.tell(thread[0], command, {**arguments, "threadId": thread[1]})

    # events

    def look_at(self, rank: int) -> None:
        """Have the front end look at a rank, if it is stopped still."""
        thread = next((each for each in self.stopped if each[0] == rank), None)
        if thread is not None:
            self._show(thread)

    def _heard(self, rank: int, event: Message) -> None:
        if self._closing or rank not in self._links:
            return
        kind, body = event.get("event"), event.get("body") or {}
        if kind == "stopped":
            self._stopped((rank, body["threadId"]), body)
        elif kind == "continued":
            self._goes_on((rank, body["threadId"]))
        elif kind in _EVENTS and body.get("category") != "telemetry":
            self._emit({**event, "body": self._ids.outward(rank, body)})

    def _stopped(self, thread: Thread, body: Message) -> None:
        self.stopped[thread] = body
        if self.focus in {None, thread}:
            self._show(thread)

    def _show(self, thread: Thread) -> None:
        self.focus = thread
        body = {**self.stopped[thread], "threadId": thread_number(*thread)}
        body["allThreadsStopped"] = False
        self._emit({"type": "event", "event": "stopped", "seq": 0, "body": body})

    def _goes_on(self, thread: Thread) -> None:
        self.stopped.pop(thread, None)
        if not any(rank == thread[0] for rank, _ in self.stopped):
            self._ids.forget(thread[0])
        if thread == self.focus:
            body = {"threadId": thread_number(*thread), "allThreadsContinued": not self.stopped}
            self._emit({"type": "event", "event": "continued", "seq": 0, "body": body})
            self._loop.call_later(STEP_S, self._pass_focus, thread)

    def _pass_focus(self, before: Thread) -> None:
        if self.focus != before or before in self.stopped or self._closing:
            return
        if self.stopped:
            self._show(next(iter(self.stopped)))
        else:
            self.focus = None

    def _ended(self, rank: int, why: str) -> None:
        self._late.discard(rank)
        if self._closing or self._links.pop(rank, None) is None:
            return
        for thread in [each for each in self.stopped if each[0] == rank]:
            self._goes_on(thread)
        said = f"{name_of(rank)} is not debugged any more: {why}\n"
        body = {"category": "important", "output": said}
        self._emit({"type": "event", "event": "output", "seq": 0, "body": body})
        if not self._links:
            self._closing = True
            self._on_over()

    def _all_go_on(self) -> None:
        if self.focus in self.stopped:
            body = {"threadId": thread_number(*self.focus), "allThreadsContinued": True}
            self._emit({"type": "event", "event": "continued", "seq": 0, "body": body})
        self.stopped.clear()
        self.focus = None


def _thread_name(rank: int, name: str) -> str:
    return name if rank == HERE else f"{name_of(rank)} / {name}"


def _best(told: Sequence[Message], command: str) -> Message:
    # The first good answer of several ranks
    good = [each for each in told if each["success"]]
    return (good or [*told, refusal(command, "no rank is attached")])[0]


def refusal(command: str, why: str) -> Message:
    """Return a response that says why there is none."""
    response = {"type": "response", "command": command, "success": False}
    return {**response, "message": why, "body": {}}
