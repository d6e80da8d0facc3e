"""The variables of a rank's cells, asked for and set from outside; results that it keeps for the
handles of cells.

Rules: all of it happens on the main thread, in turn with cells, because pickling runs the user's
code; nothing of that code ends the rank; several variables are set together or not at all. The
other side is `meshes/variables.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from monarch_nb.core.wire.frames import REPLY, Message
from monarch_nb.errors import DecodeError, EncodeError, MeshError
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc
from monarch_nb.worker.cells.queue import CellQueue

Body = dict[str, Any]

_SHELLS: Final = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})  # IPython's own
MAX_NAMES: Final = 200  # told to who has asked for another


class Variables:
    def __init__(self, proc: Proc, cells: CellQueue) -> None:
        self._proc = proc
        self._cells = cells
        self._serve("get_names", self._get)
        self._serve("set_names", self._set)
        self._serve("get_result", self._get_result)
        self._serve("drop_result", self._drop_result)

    def _serve(self, verb: str, action: Callable[[Body, Message], None]) -> None:
        """Queue what is asked for; the inbox thread does no more."""

        doing = verb.partition("_")[0]

        def later(body: Body, message: Message) -> None:
            what = " ".join([doing, *body.get("names", ["result"])])
            self._cells.later(lambda asked: step(what, body, asked), message)

        def step(what: str, body: Body, message: Message) -> None:
            try:
                self._cells.enter(what, message.tag)
                action(body, message)
            except BaseException as error:  # noqa: BLE001  pickling runs the user's code
                self._refuse(message, {"error": _said(error), "kind": type(error).__name__})
            self._cells.leave()

        self._proc.verbs[verb] = later

    def _get(self, body: Body, message: Message) -> None:
        namespace = self._cells.shell.namespace
        [name] = body["names"]
        if name in namespace:
            self._send(message, name, namespace[name])
        else:
            self._refuse(message, {"missing": name, "there": self._names()})

    def _names(self) -> list[str]:
        names = reversed(self._cells.shell.namespace)
        mine = [name for name in names if not name.startswith("_") and name not in _SHELLS]
        return mine[:MAX_NAMES]

    def _set(self, body: Body, message: Message) -> None:
        names = ", ".join(body["names"])
        try:
            values = self._proc.decode_user_data(message)[2]
        except BaseException as error:
            raise DecodeError(f"{names} cannot be unpickled there: {_line(error)}") from error
        self._cells.shell.namespace.update(values)
        self._cells.flush()
        self._proc.answer(message, {"ok": True})

    def _get_result(self, body: Body, message: Message) -> None:
        key = message.source, body["reply"]
        if key in self._cells.results:
            self._send(message, "result", self._cells.results[key])
        else:
            self._refuse(message, {"error": "the result of that cell is not kept any more"})

    def _drop_result(self, body: Body, message: Message) -> None:
        self._cells.results.pop((message.source, body["reply"]), None)

    def _send(self, message: Message, name: str, value: object) -> None:
        try:
            parcel = self._proc.encode((name, (), {name: value}), [message.source])
        except MeshError:
            raise
        except BaseException as error:
            notes = getattr(error, "__notes__", [])
            text = "; ".join([f"{name} cannot be pickled: {_line(error)}", *notes])
            raise EncodeError(text) from error
        self._answer(message, parcel)

    def _answer(self, message: Message, parcel: Payload) -> None:
        self._cells.flush()
        self._proc.send(message.source, REPLY, message.reply, parcel, rank=message.rank)

    def _refuse(self, message: Message, why: Body) -> None:
        self._cells.flush()
        self._proc.answer(message, why)


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, MeshError) else _line(error)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]
