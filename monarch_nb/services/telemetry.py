"""Spans and meters of OpenTelemetry: a program that measures itself runs here too.

Everything goes to OpenTelemetry's API. Where a process has no SDK (`set_tracer_provider`,
`set_meter_provider`), nothing is kept and a span costs some microseconds. Gauges and observable
instruments raise `NotImplementedError`, as in Monarch.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast, final, overload

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, UpDownCounter
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

P = ParamSpec("P")
R = TypeVar("R")
Instrument = TypeVar("Instrument")

# OpenTelemetry is loaded by the first span or meter, below, and nowhere else: its import takes a
# twentieth of a second, which most programs would pay for nothing in every process.


@functools.cache
def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer("monarch_nb")


@functools.cache
def get_meter(name: str = "monarch_nb") -> Meter:
    """Return the meter of this process.

    Example:
        >>> steps = get_meter().create_counter("steps")
        >>> steps.add(1, {"phase": "warm-up"})
    """
    return Meter(name)


@final
class Meter:
    """Makes OpenTelemetry's instruments; the same name gives the same one.

    Raises:
        ValueError: an instrument of another kind has that name.
        NotImplementedError: for gauges and observable instruments.
    """

    def __init__(self, name: str) -> None:
        from opentelemetry import metrics

        self.name = name
        self._meter = metrics.get_meter(name)
        self._made: dict[str, tuple[str, object]] = {}

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Make an instrument that only grows: `add(amount, attributes)`."""
        return self._once("Counter", self._meter.create_counter, name, unit, description)

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """Make an instrument that grows and shrinks: `add(amount, attributes)`."""
        create = self._meter.create_up_down_counter
        return self._once("UpDownCounter", create, name, unit, description)

    def create_histogram(
        self, name: str, unit: str = "", description: str = "", **options: Any
    ) -> Histogram:
        """Make an instrument for a distribution: `record(amount, attributes)`."""
        create = functools.partial(self._meter.create_histogram, **options)
        return self._once("Histogram", create, name, unit, description)

    def create_gauge(self, name: str, *_: object, **__: object) -> NoReturn:
        """Raise `NotImplementedError`."""
        raise NotImplementedError(f"{name!r}: gauges and observable instruments are not supported")

    create_observable_counter = create_gauge
    create_observable_up_down_counter = create_gauge
    create_observable_gauge = create_gauge

    def _once(
        self,
        kind: str,
        create: Callable[[str, str, str], Instrument],
        name: str,
        unit: str,
        description: str,
    ) -> Instrument:
        # kept here: OpenTelemetry makes another one each time, and never lets go of it
        if name not in self._made:
            self._made.setdefault(name, (kind, create(name, unit, description)))
        there, found = self._made[name]
        if there != kind:
            raise ValueError(f"{name!r} is a {there} already")
        return cast(Instrument, found)


def span(name: str, **attributes: AttributeValue) -> AbstractContextManager[Span]:
    """Measure a block: `with span("load", files=3) as found:`.

    `found` is OpenTelemetry's span (`set_attribute(name, value)`); an exception is recorded in it.
    """
    return _tracer().start_as_current_span(name, attributes=attributes)


@overload
def traced(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def traced(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def traced(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Make a function, sync or async, whose calls are spans: `@traced`, `@traced(name="load")`."""
    if function is None:
        return functools.partial(_traced, name=name)
    return _traced(function, name=name)


def _traced(function: Callable[..., Any], *, name: str | None) -> Callable[..., Any]:
    title = name or function.__qualname__
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_later(*args: object, **kwargs: object) -> object:
            with span(title):
                return await function(*args, **kwargs)

        return run_later

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        with span(title):
            return function(*args, **kwargs)

    return run


class TracingForwarder(logging.Handler):
    """A logging handler that notes records among the spans. Subclass it as any handler."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note the record."""
        attributes = {"level": record.levelname, "message": record.getMessage()}
        _tracer().start_span(f"log:{record.name}", attributes=attributes).end()
