"""What a debugger's panels show of a rank that is not stopped: variables, sources, modules.

Rules of the file: to look is cheap and harmless, as a front end looks after every cell: no
`__repr__` of the user's runs for a list of variables (that of a tensor would wait for its device),
and a rich picture of one is made on request, while no cell runs.
"""

from __future__ import annotations

import builtins
import json
import linecache
import os
import sys
from collections.abc import Callable, Sized
from pathlib import Path
from types import FrameType
from typing import Any, Final

from monarch_nb.core.wire.jsonable import jsonable

Json = dict[str, Any]
"""Of the Debug Adapter Protocol."""

MAX_NAMES: Final = 500
MAX_VALUE: Final = 200  # characters
MAX_SOURCE: Final = 4_000_000  # bytes
MAX_RICH: Final = 20_000_000  # characters; a picture may be large

_SCALARS: Final = (bool, int, float, complex, str, bytes, type(None))
_SIZED: Final = (list, tuple, dict, set, frozenset)


class VariableInspector:
    """Looks at the names of cells."""

    def __init__(
        self, namespace: Callable[[], dict[str, object]], is_busy: Callable[[], bool]
    ) -> None:
        self._namespace = namespace
        self._is_busy = is_busy

    def variables(self) -> dict[str, object]:
        """Return names, types, and values where they are numbers or text."""
        names = self._namespace()
        hidden = getattr(_shell(), "user_ns_hidden", {})
        mine = [name for name in list(names) if name[:1] != "_" and name not in hidden]
        return {"variables": [_variable(name, names.get(name)) for name in mine[-MAX_NAMES:]]}

    def rich(self, name: str) -> dict[str, object]:
        """Return a variable as its display. Raises `RuntimeError` while a cell runs, `NameError`
        for no variable."""
        if self._is_busy():
            raise RuntimeError("the rank is busy: stop it at a breakpoint to look at its variables")
        names = self._namespace()
        if name not in names:
            raise NameError(f"no variable {name!r}")
        bundle: dict[str, object] = json.loads(rich(names[name]))
        return bundle


def rich(value: object) -> str:
    """Return the display of a value as JSON: `data`, `metadata`. In the thread that is stopped."""
    data, metadata = _shell().display_formatter.format(value)
    shown = {"data": jsonable(data), "metadata": jsonable(metadata)}
    text = json.dumps(shown)
    if len(text) > MAX_RICH:
        said = {"text/plain": str(shown["data"].get("text/plain", ""))[:MAX_VALUE]}
        return json.dumps({"data": said, "metadata": {}})
    return text


def place_of(frame: FrameType) -> str:
    """Return where a frame is, for people: `train.py:41 step()`."""
    code = frame.f_code
    name = os.path.basename(code.co_filename)  # noqa: PTH119  a name, of a file or of none
    return f"{name}:{frame.f_lineno} {code.co_name}()".replace("<module>()", "").strip()


def source(path: str) -> dict[str, object]:
    """Return the text of a file or a cell that this rank knows. Raises `FileNotFoundError`,
    `ValueError` for one that is too long."""
    file = Path(path)
    if file.is_file():
        if file.stat().st_size > MAX_SOURCE:
            raise ValueError(f"{path} is longer than {MAX_SOURCE // 1_000_000} MB")
        return {"content": file.read_text(encoding="utf-8", errors="replace")}
    if not file.exists() and (lines := linecache.getlines(path)):  # a device is never read
        return {"content": "".join(lines)}
    raise FileNotFoundError(f"{path} is not on this rank's host")


def modules() -> dict[str, object]:
    found = []
    for number, (name, module) in enumerate(sys.modules.copy().items()):
        path = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(path, str) and path.endswith(".py"):
            found.append({"id": number, "name": name, "path": path})
    return {"modules": found, "totalModules": len(found)}


def shortened(response: dict[str, object], limit: int) -> dict[str, object]:
    """Shorten a response of the debugger's for a browser: cut a long value, leave out Python's own
    frames below the user's."""
    body = response.get("body")
    if not isinstance(body, dict):
        return response
    result = body.get("result")
    if isinstance(result, str) and len(result) > max(limit, MAX_RICH):
        body["result"] = f"{result[:limit]}... ({len(result)} characters)"
    frames = body.get("stackFrames")
    if isinstance(frames, list):
        body["stackFrames"] = kept = _users(frames)
        body["totalFrames"] = len(kept)
    return response


def _users(frames: list[Json]) -> list[Json]:
    # Without those that started the thread; all of them if no other is there
    last = len(frames)
    while last and is_pythons(str((frames[last - 1].get("source") or {}).get("path", ""))):
        last -= 1
    return frames[:last] or frames


def is_pythons(path: str) -> bool:
    if path.startswith(("<frozen", "<string>")):
        return True
    return path.startswith(_STDLIB) and "-packages/" not in path


def is_library(path: str) -> bool:
    """Return whether a file is Python's or was installed, rather than written by the user."""
    return is_pythons(path) or "-packages/" in path


_STDLIB: Final = f"{Path(os.__file__).parent}{os.sep}"


def _variable(name: str, value: object) -> dict[str, object]:
    return {
        "name": name,
        "value": _text(value),
        "type": type(value).__name__,
        "evaluateName": name,
        "variablesReference": 0,
    }


def _text(value: object) -> str:
    kind = type(value)
    if kind in _SCALARS:
        text = repr(value[: MAX_VALUE + 1]) if isinstance(value, str | bytes) else _number(value)
        return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."
    if kind in _SIZED and isinstance(value, Sized):
        return f"{kind.__name__} of {len(value)}"
    return kind.__name__


def _number(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # an int of more digits than Python writes
        return type(value).__name__


def _shell() -> Any:
    known = vars(builtins).get("get_ipython")  # while a cell runs
    return known() if known is not None else sys.modules["IPython"].get_ipython()
