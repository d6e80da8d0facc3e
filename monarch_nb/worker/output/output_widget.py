"""`with ipywidgets.Output():` on a rank.

In a kernel the front end sorts messages by the request that caused them. A rank has no request of
its own, so what is printed and shown inside the block is put into the widget here: into `outputs`,
which is what the front end draws. Text is added a few times a second, the rest at the block's end.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

EVERY_S: Final = 0.1
MAX_CHARS: Final = 100_000  # of one piece of text; the end is kept
MAX_OUTPUTS: Final = 200  # of one widget; the last are kept

_MODULE: Final = "ipywidgets.widgets.widget_output"


Output = dict[str, Any]
"""As Jupyter writes it in a notebook."""


class OutputWidget(Protocol):
    outputs: tuple[Output, ...]


def teach() -> None:
    """Let `Output` capture here, if the user has imported it."""
    output: type | None = getattr(sys.modules.get(_MODULE), "Output", None)
    if output is not None and vars(output).get("__enter__") is not _enter:
        for name, method in (("__enter__", _enter), ("__exit__", _exit)):
            setattr(output, name, method)


def _enter(widget: OutputWidget) -> OutputWidget:
    captured = vars(widget).setdefault("_monarch_captured", _Captured(widget))
    captured.enter()
    return widget


def _exit(widget: OutputWidget, kind: object, error: BaseException | None, _: object) -> bool:
    shown = error is not None and isinstance(error, Exception)
    if shown:
        _shell().showtraceback((kind, error, error.__traceback__ if error else None))
    vars(widget)["_monarch_captured"].leave()
    return shown  # as in a kernel: it was shown inside the widget


def _shell() -> Any:
    # That of the cells, also while a script has a `__main__` of its own
    return vars(builtins)["get_ipython"]()


class _Captured:
    def __init__(self, widget: OutputWidget) -> None:
        self._widget = widget
        self._undo = contextlib.ExitStack()
        self._outputs: list[Output] = []
        self._depth = 0
        self._sent_s = 0.0
        self._clears_next = False

    def enter(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._outputs = list(self._widget.outputs)
        for stream in ("stdout", "stderr"):
            self._undo.enter_context(_replaced(stream, _Stream(self, stream)))
        self._undo.enter_context(_shell().cells.captured(self.show))

    def leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._undo.close()
            self._send()

    def write(self, stream: str, text: str) -> None:
        last = self._begin()
        if last is not None and last.get("name") == stream:
            last = self._outputs.pop()
            text = last["text"] + text
        said = {"output_type": "stream", "name": stream, "text": text[-MAX_CHARS:]}
        self._outputs.append(said)
        if time.monotonic() - self._sent_s > EVERY_S:
            self._send()

    def show(self, message: Output) -> None:
        if message["type"] == "clear_output":
            self._clears_next = bool(message["wait"])
            if not self._clears_next:
                self._outputs.clear()
        elif message["type"] != "update_display_data":
            self._begin()
            shown = {key: message[key] for key in ("data", "metadata")}
            self._outputs.append({"output_type": "display_data", **shown})
        self._send()

    def _begin(self) -> Output | None:
        if self._clears_next:
            self._outputs.clear()
        self._clears_next = False
        return self._outputs[-1] if self._outputs else None

    def _send(self) -> None:
        self._sent_s = time.monotonic()
        self._widget.outputs = tuple(self._outputs[-MAX_OUTPUTS:])


class _Stream(io.TextIOBase):
    def __init__(self, captured: _Captured, stream: str) -> None:
        self._captured = captured
        self._stream = stream

    def write(self, text: str) -> int:
        self._captured.write(self._stream, text)
        return len(text)

    def writable(self) -> bool:
        return True


@contextlib.contextmanager
def _replaced(name: str, stream: object) -> Iterator[None]:
    before = getattr(sys, name)
    setattr(sys, name, stream)
    try:
        yield
    finally:
        setattr(sys, name, before)
