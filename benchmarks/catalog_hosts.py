"""What is measured between hosts, and what is aimed for."""

from collections.abc import Iterator

from benchmarks.targets import (
    MACHINE_WHY,
    Measure,
    Row,
    Unit,
    at_least_part_of,
    at_most,
    both,
    within_seconds_of_raw,
    within_times_of_raw,
)

_HOPS_WHY = (
    "a call within a host is 2 x raw already, and each host's gateway is a process of its own: two "
    "more hops of 70 us"
)
_COPIES_WHY = (
    "each rank makes `bytes` of its own of it, 13 ms for 32 MB: 8 ranks share 2 cores here, and "
    "one process sends to both hosts"
)


def _calls() -> tuple[Row, ...]:
    labels = {"controller": "call to a rank of another host", "hosts": "call from host to host"}
    return tuple(
        Row(
            figure,
            label,
            Unit.SECONDS,
            both(
                at_most("remote_call", figure, 0.3e-3, "<= 0.3 ms", MACHINE_WHY),
                within_times_of_raw("remote_call", figure, 1.5, _HOPS_WHY),
            ),
        )
        for figure, label in labels.items()
    )


def _data() -> tuple[Row, ...]:
    labels = {
        "argument": "256 MB argument to another host",
        "result": "256 MB result from another host",
        "read": "RDMABuffer.read_into from another host, 256 MB",
    }
    return tuple(
        Row(
            figure,
            label,
            Unit.BYTES_PER_SECOND,
            at_least_part_of("raw", "remote_data", figure, 0.65),
        )
        for figure, label in labels.items()
    )


_NUMBERS_WHY = (
    "the session of each host counts what it is sent, 5 to 9 us a host; one message for each host "
    "took 50 us. The stand-ins share the two cores, so the controller finds its caches cold"
)
_OF_1000 = at_most("many_hosts", "cpu_1000", 5e-3, "<= 5 ms", _NUMBERS_WHY)


def _growth() -> Iterator[Row]:
    target = at_most(
        "growth", "times", 1.5, "<= 1.5 x: log(10 000) is 4/3 of log(1 000)", _GROWTH_WHY
    )
    for count in (10, 100, 1000, 10_000):
        label = f"call to {count} hosts, simulated clock"
        yield Row(f"tree_{count}", label, Unit.SECONDS)
        yield Row(f"star_{count}", f"{label}: without the tree", Unit.SECONDS)
    yield Row("times", "call to 10 000 hosts, times 1 000", Unit.TIMES, target)


_GROWTH_WHY = (
    "the session of each host counts what it is sent, and that is work for each host; what is sent "
    "and received grows with the steps of the tree"
)

HOSTS: tuple[Measure, ...] = (
    Measure("remote_call", _calls()),
    Measure(
        "remote_cast",
        (
            Row("time", "call to 2 hosts x 4 ranks", Unit.SECONDS),
            Row("cpu", "the same: processor time of the controller", Unit.SECONDS),
            Row("medium_one", "32 MB to one rank of another host", Unit.SECONDS),
            Row(
                "medium_times",
                "32 MB to 2 hosts x 4 ranks, times one",
                Unit.TIMES,
                at_most("remote_cast", "medium_times", 1.2, "<= 1.2 x", _COPIES_WHY),
            ),
        ),
    ),
    Measure("remote_data", _data()),
    Measure(
        "many_hosts",
        (
            *(
                Row(
                    f"cpu_{count}",
                    f"call to 8 ranks on each of {count} hosts: processor time of the controller",
                    Unit.SECONDS,
                    _OF_1000 if count == 1000 else None,
                )
                for count in (10, 100, 1000)
            ),
            Row(
                "sockets",
                "its sockets",
                Unit.COUNT,
                at_most("many_hosts", "sockets", 64, "<= 64"),
            ),
        ),
        quick=False,
    ),
    Measure("growth", tuple(_growth()), deadline_s=900, quick=False),
    Measure(
        "remote_up",
        (
            Row(
                "time",
                "attach 4 hosts, spawn 4 x 8 ranks, torch loaded",
                Unit.SECONDS,
                within_seconds_of_raw("remote_up", "time", 1),
            ),
        ),
        quick=False,
    ),
)
