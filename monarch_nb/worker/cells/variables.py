"""The variables of a rank's cells, asked for and set from outside; results that it keeps for the
handles of cells.

Rules: all of it happens on the main thread, in turn with cells, because pickling runs the user's
code; nothing of that code ends the rank; several variables are set together or not at all. The
other side is `meshes/variables.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from monarch_nb.core.wire.frames import REPLY, Message
from monarch_nb.core.wire.messages import cells as messages
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.errors import DecodeError, EncodeError, MeshError
from monarch_nb.process.process import Proc
from monarch_nb.worker.cells.queue import CellQueue

_SHELLS: Final = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})  # IPython's own
MAX_NAMES: Final = 200  # told to who has asked for another


class Variables:
    def __init__(self, proc: Proc, cells: CellQueue) -> None:
        self._proc = proc
        self._cells = cells

    # the inbox thread: what is asked for is queued

    def on_get(self, wanted: messages.GetVariable, message: Message) -> None:
        """Send the value of a variable."""
        self._later(["get", *wanted.names], lambda: self._get(wanted, message), message)

    def on_set(self, wanted: messages.SetVariables, message: Message) -> None:
        """Set variables."""
        self._later(["set", *wanted.names], lambda: self._set(wanted, message), message)

    def on_get_result(self, wanted: messages.GetResult, message: Message) -> None:
        """Send the value that is kept of a cell."""
        self._later(["get", "result"], lambda: self._get_result(wanted, message), message)

    def on_drop_result(self, wanted: messages.DropResult, message: Message) -> None:
        """Keep it no longer."""
        key = message.source, wanted.reply
        self._later(["drop", "result"], lambda: self._cells.results.pop(key, None), message)

    def _later(self, words: list[str], action: Callable[[], object], message: Message) -> None:
        def step(message: Message) -> None:
            try:
                self._cells.enter(" ".join(words), message.tag)
                action()
            except BaseException as error:  # noqa: BLE001  pickling runs the user's code
                said = str(error) if isinstance(error, MeshError) else _line(error)
                self._answer(message, Refused(said, type(error).__name__))
            self._cells.leave()

        self._cells.later(step, message)

    # the main thread

    def _get(self, wanted: messages.GetVariable, message: Message) -> None:
        namespace = self._cells.shell.namespace
        [name] = wanted.names
        if name in namespace:
            self._send(message, name, namespace[name])
        else:
            self._answer(message, messages.NotDefined(name, self._names()))

    def _names(self) -> list[str]:
        names = reversed(self._cells.shell.namespace)
        mine = [name for name in names if not name.startswith("_") and name not in _SHELLS]
        return mine[:MAX_NAMES]

    def _set(self, wanted: messages.SetVariables, message: Message) -> None:
        names = ", ".join(wanted.names)
        try:
            values = self._proc.decode_user_data(message)[2]
        except BaseException as error:
            raise DecodeError(f"{names} cannot be unpickled there: {_line(error)}") from error
        self._cells.shell.namespace.update(values)
        self._answer(message, Done())

    def _get_result(self, wanted: messages.GetResult, message: Message) -> None:
        key = message.source, wanted.reply
        if key in self._cells.results:
            self._send(message, "result", self._cells.results[key])
        else:
            self._answer(message, Refused("the result of that cell is not kept any more"))

    def _send(self, message: Message, name: str, value: object) -> None:
        try:
            payload = self._proc.encode((name, (), {name: value}), [message.source])
        except MeshError:
            raise
        except BaseException as error:
            notes = getattr(error, "__notes__", [])
            text = "; ".join([f"{name} cannot be pickled: {_line(error)}", *notes])
            raise EncodeError(text) from error
        self._cells.flush()
        self._proc.send(message.source, REPLY, message.reply, payload, rank=message.rank)

    def _answer(self, message: Message, answer: Done | messages.NotDefined | Refused) -> None:
        self._cells.flush()
        self._proc.answer(message, answer)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]
