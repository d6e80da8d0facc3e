"""Part A, meters and spans: OpenTelemetry's, seen by its SDK."""

import asyncio
import logging
import subprocess
import sys

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from monarch_nb import get_meter, span, traced
from monarch_nb.services import telemetry

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)  # once in a process


@pytest.fixture
def reader(monkeypatch) -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", MeterProvider([reader]).get_meter)
    return reader


@pytest.fixture(autouse=True)
def fresh(reader):
    EXPORTER.clear()
    get_meter.cache_clear()
    yield
    get_meter.cache_clear()


def measured(reader: InMemoryMetricReader) -> dict[str, dict[tuple, list[float]]]:
    """By instrument and attributes: what it has added up, of a histogram how often too."""
    data = reader.get_metrics_data()
    found = [one for r in data.resource_metrics for s in r.scope_metrics for one in s.metrics]
    return {
        one.name: {
            tuple(sorted(point.attributes.items())): [point.count, point.sum]
            if hasattr(point, "sum")
            else [point.value]
            for point in one.data.data_points
        }
        for one in found
    }


def test_instruments_add_up_by_attributes(reader):
    meter = get_meter()
    assert meter is get_meter()
    counter = meter.create_counter("steps", unit="1", description="steps done")
    counter.add(1)
    counter.add(2, {"phase": "warm"})
    counter.add(3, attributes={"phase": "warm"})
    assert meter.create_counter("steps") is counter
    level = meter.create_up_down_counter("level")
    level.add(5)
    level.add(-7)
    sizes = meter.create_histogram("sizes")
    sizes.record(2.5)
    assert measured(reader) == {
        "steps": {(): [1], (("phase", "warm"),): [5]},
        "level": {(): [-2]},
        "sizes": {(): [1, 2.5]},
    }


def test_counters_do_not_shrink(reader):
    counter = get_meter().create_counter("steps")
    counter.add(2)
    counter.add(-1)
    assert measured(reader) == {"steps": {(): [2]}}
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
        assert outer.end_time is None
    with pytest.raises(KeyError), span("failing"):
        raise KeyError
    spans = EXPORTER.get_finished_spans()
    names = [(each.name, each.attributes, [e.name for e in each.events]) for each in spans]
    assert names == [
        ("inner", {}, []),
        ("outer", {"size": 3, "more": 4}, []),
        ("failing", {}, ["exception"]),
    ]
    assert spans[0].parent.span_id == spans[1].context.span_id
    assert spans[2].events[0].attributes["exception.type"] == "KeyError"
    assert all(each.end_time >= each.start_time for each in spans)


def test_traced_functions():
    @traced
    def plain(x):
        return x + 1

    @traced(name="named")
    async def later(x):
        return x + 2

    assert (plain(1), asyncio.run(later(1))) == (2, 3)
    assert plain.__name__ == "plain"
    names = [each.name.rpartition(".")[2] for each in EXPORTER.get_finished_spans()]
    assert names == ["plain", "named"]


def test_log_records_are_forwarded():
    logger = logging.getLogger("tests.forwarded")
    logger.addHandler(handler := telemetry.TracingForwarder(level=logging.ERROR))
    logger.propagate = False
    logger.error("at %d", 3)
    logger.warning("too low")
    logger.removeHandler(handler)
    assert [(each.name, each.attributes) for each in EXPORTER.get_finished_spans()] == [
        ("log:tests.forwarded", {"level": "ERROR", "message": "at 3"})
    ]


def test_without_an_sdk_nothing_is_loaded_before_the_first_span_and_nothing_is_kept():
    program = """if True:
        import sys
        from monarch_nb import get_meter, span, traced
        work = traced(len)
        assert not any(name.startswith("opentelemetry") for name in sys.modules)
        with span("load", size=3) as found:
            assert not found.is_recording() and work("ab") == 2
        get_meter().create_counter("steps").add(1)
        assert "opentelemetry.sdk" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)
