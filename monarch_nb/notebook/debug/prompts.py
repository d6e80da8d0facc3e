"""The debugger's prompt in the cell that waits, and a word where there is none; and the questions
of `input()` on ranks, one rank after the other.

Rules of the file: ranks that stop for the running cell are spoken to in that cell; those that stop
for another one, or for none, are told of below it, and spoken to in the running cell only when that
waits and so nobody could type `%mesh debug`. `input()` is for the running cell too; only that of a
cell which another kernel has begun waits for one in which a person waits. One thread does that,
while ranks are stopped; what it says comes before the end of the cell.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.control.debug.prompt import NOBODY, Conversation
from monarch_nb.control.debug.sessions import Key, Stop
from monarch_nb.core.wire.messages.debug import INPUT
from monarch_nb.notebook import tracebacks
from monarch_nb.notebook.cells.registry import Cell, CellRegistry
from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.output.router import OutputRouter

if TYPE_CHECKING:
    from monarch_nb.control.api import Client, Control

BLOCKED_S: Final = 1.0
LOOK_S: Final = 0.25
END_S: Final = 0.2
STOPPING_S: Final = 1.0
"""After the stop button, how long no question is asked; who is still stopped then did not hear."""


class Prompts:
    """The debugger's prompts of a session."""

    def __init__(
        self,
        shell: InteractiveShell,
        control: Control,
        cells: CellRegistry,
        link: ClientLink,
        output: OutputRouter,
    ) -> None:
        self._shell = shell
        self._control = control
        self._cells = cells
        self._link = link
        self._output = output
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._told: dict[Key, int] = {}
        self._conversations: WeakKeyDictionary[Cell, Conversation] = WeakKeyDictionary()
        self._left: WeakSet[Cell] = WeakSet()  # cells whose prompt the user has closed
        self._is_here = False  # `%mesh debug` holds the prompt
        self._is_closed = False
        link.on_attach(self._listen)

    @property
    def _client(self) -> Client:
        client = self._link.client
        assert client is not None  # ranks of it have stopped
        return client

    def _listen(self, client: Client) -> None:
        client.debugging.listen(self._changed)
        client.debugging.take(self._takes)
        client.status.name_places(partial(tracebacks.named_place, self._shell))

    def close(self) -> None:
        self._is_closed = True

    # the inbox thread

    def _takes(self, stop: Stop) -> bool:
        cell = self._cells.of(stop.tag)
        if self._is_closed or cell is None or cell.asker is None:
            return False
        return stop.kind != INPUT or cell is self._cells.running or cell.is_resumed

    def _changed(self) -> None:
        with self._lock:
            if self._thread is None and self._client.debugging.stops():
                self._thread = threading.Thread(
                    target=self._attend, name="monarch-debugger", daemon=True
                )
                self._thread.start()

    # the thread

    def _attend(self) -> None:
        debuggers = self._client.debugging
        while True:
            with self._lock:
                if self._is_closed or not debuggers.stops():
                    self._thread = None
                    return
            debuggers.gather()
            if (asked := self._question()) is not None:
                self._answer(*asked)
                continue
            cell = self._cell_to_ask()
            if cell is not None:
                self._converse(cell, self._conversations.get(cell) or self._conversation(cell))
                continue
            self._tell_below()
            serials = [stop.serial for stop in debuggers.stops()]
            debuggers.wait(partial(self._is_news, serials), LOOK_S)

    def _is_news(self, serials: list[int]) -> bool:
        return [stop.serial for stop in self._client.debugging.stops()] != serials

    def _question(self) -> tuple[Stop, Cell | None] | None:
        # Of `input()`, and the cell to ask it in
        running = self._cells.running
        for stop in self._client.debugging.stops():
            if stop.kind == INPUT:
                own = self._cells.of(stop.tag)
                if own is None or not own.is_resumed:
                    return stop, own
                if running is not None and self._can_ask(running) and _is_waiting(running):
                    return stop, running
        return None

    def _answer(self, question: Stop, cell: Cell | None) -> None:
        # The line that a person types, or word that nobody does
        debuggers, own = self._client.debugging, self._cells.of(question.tag)
        line = None
        if cell is not None and cell.asker is not None:
            with self._leaving(cell), cell.asking():
                cell.output.make_way()
                asked = f"rank {question.rank}: {question.text}{question.prompt}"
                line = cell.asker.ask(asked, lambda: self._is_taken_back(cell, question))
        if line is None:
            if own is None or not own.is_resumed:
                debuggers.refuse(question.key)
            return
        answer = debuggers.send(question.key, line)
        while not debuggers.wait(lambda: answer.is_final, LOOK_S):
            continue

    def _is_taken_back(self, cell: Cell, question: Stop) -> bool:
        is_there = question in self._client.debugging.stops()
        return not is_there or self._is_closed or cell.is_over or _is_being_stopped(cell)

    def _cell_to_ask(self) -> Cell | None:
        cell = self._cells.running
        if cell is None or not self._can_ask(cell) or self._is_here:
            return None
        stops = self._held_up()
        if any(stop.tag == cell.tag for stop in stops):
            return cell
        return cell if stops and _is_waiting(cell) else None

    def _can_ask(self, cell: Cell) -> bool:
        return cell.asker is not None and cell not in self._left and not _is_being_stopped(cell)

    def _held_up(self) -> list[Stop]:
        # Not the frames of a failure: those are open because somebody speaks to them
        kinds = ("post-mortem", INPUT)
        stops = self._client.debugging.stops()
        return [stop for stop in stops if stop.kind not in kinds and self._stays(stop)]

    def _stays(self, stop: Stop) -> bool:
        # Not so where its cell was stopped just now: it goes on in a moment
        cell = self._cells.of(stop.tag)
        return cell is None or not _is_being_stopped(cell)

    def _conversation(
        self, cell: Cell, wants: Callable[[Stop], bool] | None = None
    ) -> Conversation:
        say = partial(cell.output.say, "stdout")
        name = f"Cell In[{cell.number}]"
        made = Conversation(self._client.debugging, say, wants or self._stays, name=name)
        self._conversations[cell] = made
        return made

    def _converse(self, cell: Cell, conversation: Conversation) -> None:
        assert cell.asker is not None
        with self._leaving(cell), cell.asking():
            while conversation.stops() and not self._is_over(cell, conversation):
                cell.output.make_way()
                conversation.announce()
                conversation.greet()
                line = cell.asker.ask(conversation.prompt, self._until(cell, conversation))
                if line is not None:
                    conversation.do(line)

    @contextlib.contextmanager
    def _leaving(self, cell: Cell) -> Iterator[None]:
        try:
            yield
        except Exception:  # the front end has left in the middle of it
            self._left.add(cell)
            logging.getLogger("monarch_nb").exception("the prompt of a rank could not go on")

    def _is_over(self, cell: Cell, conversation: Conversation) -> bool:
        (self._left.add if conversation.is_over else self._left.discard)(cell)
        is_closed = self._is_closed or cell.is_over or _is_being_stopped(cell)
        if is_closed:
            conversation.close()
        else:
            conversation.reopen()
        return is_closed or conversation.is_over

    def _until(self, cell: Cell, conversation: Conversation) -> Callable[[], bool]:
        # When to take a question back: looked at while it is open. Who stops meanwhile is told of.
        prompt, told, debuggers = conversation.prompt, 0, self._client.debugging

        def is_over() -> bool:
            if self._is_over(cell, conversation):
                return True
            nonlocal told
            serial = max((stop.serial for stop in conversation.stops()), default=0)
            if serial != told and debuggers.is_quiet:
                told = serial
                conversation.announce()
            return conversation.prompt != prompt

        return is_over

    def _tell_below(self) -> None:
        # Of stops that nobody speaks to here
        stops = [stop for stop in self._client.debugging.stops() if self._stays(stop)]
        new = [stop for stop in stops if self._told.get(stop.key) != stop.serial]
        self._told = {stop.key: stop.serial for stop in stops}
        for stop in new:
            cell = self._cells.of(stop.tag)
            if stop.kind == INPUT and cell is not None:
                asked = f"rank {stop.rank} asks: {stop.text}{stop.prompt}".rstrip()
                self._output.say(cell, f"{asked}\ncell{cell.number}.wait() lets you answer\n")
        self._tell_of_stops([stop for stop in self._held_up() if stop in new])

    def _tell_of_stops(self, new: Sequence[Stop]) -> None:
        for tag in dict.fromkeys(stop.tag for stop in new):
            cell = self._cells.of(tag)
            if cell is None:
                continue
            mine = {stop.key for stop in new if stop.tag == tag}
            say = partial(self._output.say, cell)
            conversation = Conversation(self._client.debugging, say, partial(_is_one_of, mine))
            conversation.announce()
            conversation.leave()
            say("%mesh debug opens the prompt\n")

    # the main thread

    def open(self, rank: int | None) -> None:
        """Open the prompt of `%mesh debug` in this cell, for this rank first.

        The stop button closes it; ranks stay as they are. Raises `MagicError` if nobody is stopped.
        """
        cell = self._cell_here()
        if self._link.attach() is None or not self._client.debugging.stops():
            raise MagicError(NOBODY)
        conversation = self._conversation(cell, lambda _: True)
        if rank is not None and not conversation.choose(rank):
            raise MagicError(f"rank {rank} is not stopped. {conversation.who()}")
        self._hold(cell, conversation)

    def open_failed(self, processes: Sequence[int] | None, tag: int | None = None) -> bool:
        """Open the frames of the last failure of these processes, or of all, until the prompt is
        left.

        Returns whether there are any.
        """
        cell = self._cell_here()
        self._link.attach()
        keys = self._control.open_failed(processes, tag)
        conversation = self._conversation(cell, partial(_is_one_of, set(keys)))
        try:
            self._hold(cell, conversation)
        finally:
            for key in keys:
                self._client.debugging.send(key, "continue")
        return bool(keys)

    def _cell_here(self) -> Cell:
        cell = self._cells.running
        if cell is None or cell.asker is None:
            raise MagicError("nobody can type here: this front end takes no input")
        return cell

    def _hold(self, cell: Cell, conversation: Conversation) -> None:
        self._is_here = True
        try:
            self._converse(cell, conversation)
            while conversation.is_waiting and not conversation.is_over:
                self._client.debugging.wait(
                    lambda: bool(conversation.stops()) or not conversation.is_waiting, LOOK_S
                )
                self._converse(cell, conversation)
        except KeyboardInterrupt:
            self._output.say(cell, "the prompt is closed\n")
        finally:
            self._is_here = False

    def cell_ends(self, cell: Cell) -> None:
        """Take its question back; what was said is above its end."""
        cell.end()
        if (conversation := self._conversations.get(cell)) is not None:
            conversation.leave()
        deadline = time.monotonic() + END_S
        while cell.is_asking and time.monotonic() < deadline:
            time.sleep(0.005)


def _is_being_stopped(cell: Cell) -> bool:
    # Its ranks go on one after the other: a new question would be for one that is about to go
    return time.monotonic() - cell.interrupted_s < STOPPING_S


def _is_waiting(cell: Cell) -> bool:
    # Whether the running cell waits in something of ours, or awaits, rather than computes
    if time.monotonic() - cell.started_s < BLOCKED_S:
        return False
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    is_ours = False
    while frame is not None and tracebacks.is_library(frame.f_code.co_filename):
        is_ours = is_ours or tracebacks.is_ours(frame.f_code.co_filename)
        frame = frame.f_back
    return is_ours or frame is None


def _is_one_of(keys: set[Key], stop: Stop) -> bool:
    return stop.key in keys
