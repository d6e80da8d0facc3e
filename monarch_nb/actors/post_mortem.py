"""What has failed last in this process, with its frames, for whoever wants to look into them.

Rules of the file: one error for each origin (the cells, each actor), of the last `room` origins;
it goes when that origin has run something well. Frames hold their variables, tensors among them.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from monarch_nb.process.instance import CallContext, here

CELLS: Final = 0
"""The origin that is no actor; an actor's is its port."""


class Kept(NamedTuple):
    error: BaseException
    here: CallContext | None
    at: float


class LastFailures:
    """Of one process. A rank gives it room; elsewhere nothing is kept.

    `stop(error)` is called where something fails, before anybody is told; None: nothing is.
    """

    def __init__(self) -> None:
        self.kept: dict[int, Kept] = {}
        self.stop: Callable[[BaseException], None] | None = None
        self._room = 0
        self._looked_into: list[int] = []

    def make_room(self, count: int) -> None:
        self._room = count

    def stop_with(self, stop: Callable[[BaseException], None] | None) -> None:
        self.stop = stop

    def seen(self, origin: int, error: BaseException) -> BaseException:
        """User code has raised this, in this thread. Returns the error with which it ends: an
        interrupt, if it was stopped and interrupted there."""
        if not self._room or not isinstance(error, Exception):
            return error
        try:
            self._keep(origin, error)
            if self.stop is not None:
                self.stop(error)
        except BaseException as interrupt:  # noqa: BLE001  the stop button
            return interrupt
        return error

    def _keep(self, origin: int, error: BaseException) -> None:
        self.kept.pop(origin, None)
        self.kept[origin] = Kept(error, here.get(), time.monotonic())
        while len(self.kept) > self._room:
            self.kept.pop(next(iter(self.kept)), None)

    def forget(self, origin: int) -> None:
        kept = self.kept.pop(origin, None)
        if kept is not None and id(kept.error) not in self._looked_into:
            _empty(kept.error)

    def clear(self) -> None:
        for origin in list(self.kept):
            self.forget(origin)

    @contextlib.contextmanager
    def looking_into(self, error: BaseException) -> Iterator[None]:
        """Inside, its frames stay as they are; what was forgotten meanwhile goes afterwards. Any
        thread."""
        self._looked_into.append(id(error))
        try:
            yield
        finally:
            self._looked_into.remove(id(error))
            if id(error) not in [*self._looked_into, *(id(kept.error) for kept in self._all())]:
                _empty(error)

    def _all(self) -> list[Kept]:
        return list(self.kept.values())

    def last(self, tag: int | None = None) -> Kept | None:
        """Return the newest, or the newest of a notebook cell. Any thread."""
        found = [
            each
            for each in self._all()
            if tag is None or (each.here is not None and each.here.tag == tag)
        ]
        return max(found, key=lambda each: each.at, default=None)


def _empty(error: BaseException | None) -> None:
    """Let go of the variables of its frames, and its causes': errors and frames form rings."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            with contextlib.suppress(RuntimeError):  # it runs still
                frame.clear()
                frame.f_locals  # noqa: B018  a copy that a debugger has looked at loses them too
        error = error.__cause__ or error.__context__
