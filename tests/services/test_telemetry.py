"""Part A, meters and spans: OpenTelemetry's shape, in this process."""

from __future__ import annotations

import asyncio
import logging

import pytest

from monarch_nb import get_meter, span, traced
from monarch_nb.services import telemetry


@pytest.fixture(autouse=True)
def nothing_recorded():
    telemetry.spans.clear()
    get_meter().instruments.clear()


def test_instruments_add_up_by_attributes():
    meter = get_meter()
    assert meter is get_meter()
    counter = meter.create_counter("steps", unit="1", description="steps done")
    counter.add(1)
    counter.add(2, {"phase": "warm"})
    counter.add(3, attributes={"phase": "warm"})
    assert meter.create_counter("steps") is counter
    assert counter.values == {(): [1, 1.0], (("phase", "warm"),): [2, 5.0]}
    level = meter.create_up_down_counter("level")
    level.add(5)
    level.add(-7)
    assert level.values == {(): [2, -2.0]}
    sizes = meter.create_histogram("sizes")
    sizes.record(2.5)
    assert sizes.values == {(): [1, 2.5]}


def test_counters_do_not_shrink():
    with pytest.raises(ValueError, match="only grows"):
        get_meter().create_counter("steps").add(-1)
    with pytest.raises(ValueError, match="is a Counter already"):
        get_meter().create_histogram("steps")


@pytest.mark.parametrize(
    "name", ["gauge", "observable_counter", "observable_up_down_counter", "observable_gauge"]
)
def test_what_is_not_supported(name):
    with pytest.raises(NotImplementedError, match="not supported"):
        getattr(get_meter(), f"create_{name}")("x")


def test_spans_are_measured_and_kept():
    with span("outer", size=3) as outer, span("inner"):
        outer.set_attribute("more", 4)
        assert outer.duration_s is None
    with pytest.raises(KeyError), span("failing"):
        raise KeyError
    names = [(each.name, each.attributes, each.error) for each in telemetry.spans]
    assert names == [
        ("inner", {}, None),
        ("outer", {"size": 3, "more": 4}, None),
        ("failing", {}, "KeyError"),
    ]
    assert all(each.duration_s >= 0 for each in telemetry.spans)


def test_traced_functions():
    @traced
    def plain(x):
        return x + 1

    @traced(name="named")
    async def later(x):
        return x + 2

    assert (plain(1), asyncio.run(later(1))) == (2, 3)
    assert plain.__name__ == "plain"
    assert [each.name.rpartition(".")[2] for each in telemetry.spans] == ["plain", "named"]


def test_log_records_are_forwarded():
    logger = logging.getLogger("tests.forwarded")
    logger.addHandler(handler := telemetry.TracingForwarder(level=logging.ERROR))
    logger.propagate = False
    logger.error("at %d", 3)
    logger.warning("too low")
    logger.removeHandler(handler)
    assert [(each.name, each.attributes) for each in telemetry.spans] == [
        ("log:tests.forwarded", {"level": "ERROR", "message": "at 3"})
    ]
