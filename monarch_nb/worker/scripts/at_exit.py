"""`atexit` for code whose process does not end with it."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

from monarch_nb.core.errors.records import ErrorRecord


class AtExit:
    """What the script's own code wants to be called at its end; libraries live on."""

    def __init__(self, is_of_script: Callable[[str], bool]) -> None:
        self._is_of_script = is_of_script
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._originals = atexit.register, atexit.unregister
        vars(atexit).update(register=self._register, unregister=self._unregister)

    def close(self) -> None:
        """`atexit` is Python's again."""
        register, unregister = self._originals
        vars(atexit).update(register=register, unregister=unregister)
        self._calls.clear()

    def run(self) -> None:
        """The last one first. What they raise is printed, as Python does."""
        while self._calls:
            call, args, options = self._calls.pop()
            try:
                call(*args, **options)
            except Exception as error:  # noqa: BLE001  the script's
                said = "\n".join(ErrorRecord.from_exception(error).format())
                print(f"Exception ignored in atexit callback {call!r}:\n{said}", file=sys.stderr)  # noqa: T201

    def _register(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not self._is_of_script(caller):
            return self._originals[0](call, *args, **options)
        self._calls.append((call, args, options))
        return call

    def _unregister(self, call: Callable[..., Any]) -> None:
        self._calls = [one for one in self._calls if one[0] != call]
        self._originals[1](call)
