"""Stand-ins for actor classes, for tests: what this process spawns in the place of a class."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

from monarch_nb.actors.definition import Actor

_instead: Final[dict[type, type]] = {}


def patch_actor(original: type[Actor], mock: type[Actor]) -> StandIn:
    """Have `spawn` make `mock` where a program of this process says `original`.

    A context manager (also an asynchronous one) and a decorator of functions, asynchronous ones
    too; nested ones end in turn.

    Example:
        >>> with patch_actor(Trainer, QuickTrainer):       # doctest: +SKIP
        ...     main()
    """
    return StandIn(original, mock)


def stand_in(cls: type) -> type:
    """Return what is spawned where a program says `cls`."""
    return _instead.get(cls, cls)


class StandIn:
    """One replacement, while it is entered."""

    def __init__(self, original: type[Actor], mock: type[Actor]) -> None:
        self._original = original
        self._mock = mock
        self._outside: list[type | None] = []

    def __enter__(self) -> type[Actor]:
        self._outside.append(_instead.get(self._original))
        _instead[self._original] = self._mock
        return self._mock

    def __exit__(self, *_: object) -> None:
        before = self._outside.pop()
        if before is None:
            del _instead[self._original]
        else:
            _instead[self._original] = before

    async def __aenter__(self) -> type[Actor]:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return functools.wraps(function)(
            run_async if asyncio.iscoroutinefunction(function) else run
        )
