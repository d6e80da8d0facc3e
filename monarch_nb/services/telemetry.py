"""Meters and spans in OpenTelemetry's shape: a program that measures itself runs here too.

Nothing is exported. Instruments add up what they are given in this process; the last spans are
kept. Gauges and observable instruments raise `NotImplementedError`, as in Monarch.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar, final, overload

F = TypeVar("F", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound="_Instrument")
Attributes = Mapping[str, Any] | None
_KEPT: Final = 1_000


class _Instrument:
    """Totals by attributes."""

    def __init__(self, name: str, unit: str, description: str) -> None:
        self.name = name
        self.unit = unit
        self.description = description
        self.values: dict[tuple[tuple[str, Any], ...], list[float]] = {}
        self._lock = threading.Lock()

    def _note(self, amount: float, attributes: Attributes) -> None:
        key = tuple(sorted((attributes or {}).items()))
        with self._lock:
            found = self.values.setdefault(key, [0, 0.0])
            found[0] += 1
            found[1] += amount


class Counter(_Instrument):
    """Only grows. `values` maps attributes to `[how often, sum]`."""

    def add(self, amount: float, attributes: Attributes = None, context: object = None) -> None:
        """Raises `ValueError` for a negative amount."""
        del context
        if amount < 0:
            raise ValueError(f"counter {self.name!r} only grows, not by {amount}")
        self._note(amount, attributes)


class UpDownCounter(_Instrument):
    """Grows and shrinks."""

    def add(self, amount: float, attributes: Attributes = None, context: object = None) -> None:
        """Add."""
        del context
        self._note(amount, attributes)


class Histogram(_Instrument):
    """Keeps how often and how much in all."""

    def record(self, amount: float, attributes: Attributes = None, context: object = None) -> None:
        """Note one value."""
        del context
        self._note(amount, attributes)


@final
class Meter:
    """Makes instruments; the same name gives the same one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instruments: dict[str, _Instrument] = {}

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """A counter."""
        return self._instrument(Counter, name, unit, description)

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """An up-down counter."""
        return self._instrument(UpDownCounter, name, unit, description)

    def create_histogram(
        self, name: str, unit: str = "", description: str = "", **_: Any
    ) -> Histogram:
        """A histogram."""
        return self._instrument(Histogram, name, unit, description)

    def create_gauge(self, name: str, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        raise NotImplementedError(f"gauge {name!r}: gauges are not supported")

    def _observable(self, name: str, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name!r}: observable instruments are not supported")

    create_observable_counter = _observable
    create_observable_up_down_counter = _observable
    create_observable_gauge = _observable

    def _instrument(self, kind: type[Kind], name: str, unit: str, description: str) -> Kind:
        found = self.instruments.setdefault(name, kind(name, unit, description))
        if not isinstance(found, kind):
            raise ValueError(f"{name!r} is a {type(found).__name__} already")  # noqa: TRY004
        return found


@functools.cache
def get_meter(name: str = "monarch_nb") -> Meter:
    """The meter of this process.

    Example:
        >>> steps = get_meter().create_counter("steps")
        >>> steps.add(1, {"phase": "warm-up"})
    """
    return Meter(name)


@dataclass
class Span:
    """A stretch of work: `duration_s` once it has ended, `error` if it raised."""

    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    duration_s: float | None = None
    error: str | None = None

    def set_attribute(self, name: str, value: Any) -> None:
        """Add something that is known only now."""
        self.attributes[name] = value


spans: Final[collections.deque[Span]] = collections.deque(maxlen=_KEPT)
"""The last spans that have ended in this process."""


@contextlib.contextmanager
def span(name: str, **attributes: Any) -> Iterator[Span]:
    """`with span("load"):` measures the block; it is kept among the last spans."""
    found = Span(name, attributes)
    started = time.perf_counter()
    try:
        yield found
    except BaseException as error:
        found.error = type(error).__name__
        raise
    finally:
        found.duration_s = time.perf_counter() - started
        spans.append(found)


@overload
def traced(function: F, /) -> F: ...
@overload
def traced(*, name: str | None = None) -> Callable[[F], F]: ...
def traced(function: Any = None, /, *, name: str | None = None) -> Any:
    """A function, sync or async, whose calls are spans: `@traced` or `@traced(name="load")`."""
    if function is None:
        return functools.partial(_traced, name=name)
    return _traced(function, name=name)


def _traced(function: Callable[..., Any], *, name: str | None) -> Any:
    title = name or function.__qualname__
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_later(*args: Any, **kwargs: Any) -> Any:
            with span(title):
                return await function(*args, **kwargs)

        return run_later

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with span(title):
            return function(*args, **kwargs)

    return run


class TracingForwarder(logging.Handler):
    """A logging handler that notes records among the spans. Subclass it as any handler."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note the record."""
        attributes = {"level": record.levelname, "message": record.getMessage()}
        spans.append(Span(f"log:{record.name}", attributes, 0.0))
