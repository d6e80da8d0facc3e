"""What is measured of the data plane, and what is aimed for."""

from benchmarks.targets import (
    MACHINE_WHY,
    Measure,
    Row,
    Target,
    Unit,
    at_least,
    at_least_part_of,
    at_most,
    both,
)

CAST_RANKS = 8


def speeds(
    name: str, label: str, target: Target | None = None, cold: Target | None = None
) -> Measure:
    """Bytes per second, first time and later."""
    rows = (
        Row("cold", f"{label}, cold", Unit.BYTES_PER_SECOND, cold),
        Row("warm", f"{label}, warm", Unit.BYTES_PER_SECOND, target),
    )
    return Measure(name, rows)


def _rdma() -> Measure:
    limits = {"4k": ("4 KB", 100e-6, "<= 100 us"), "1m": ("1 MB", 0.5e-3, "<= 0.5 ms")}
    rows = []
    for verb, call in (("read", "read_into"), ("write", "write_from")):
        for size, (label, limit, text) in limits.items():
            target = at_most("rdma", f"{verb}_{size}", limit, text, MACHINE_WHY)
            rows.append(Row(f"{verb}_{size}", f"RDMABuffer.{call}, {label}", Unit.SECONDS, target))
        target = at_least_part_of("raw", "rdma", f"{verb}_256m", 0.6)
        label = f"RDMABuffer.{call}, 256 MB"
        rows.append(Row(f"{verb}_256m", label, Unit.BYTES_PER_SECOND, target))
    return Measure("rdma", tuple(rows))


def _beside() -> Measure:
    rows = [Row("idle", "call on a rank, nothing moves", Unit.SECONDS)]
    for name, what in (
        ("argument", "1 GB is an argument of another rank's calls"),
        ("read", "read_into of 1 GB from another rank"),
    ):
        rows.append(Row(name, f"call on a rank, meanwhile: {what}", Unit.SECONDS))
        target = at_most("beside", f"{name}_times", 2, "<= 2 x", MACHINE_WHY)
        rows.append(Row(f"{name}_times", f"{what}: times idle", Unit.TIMES, target))
    return Measure("beside", tuple(rows), ranks=2)


def _peak() -> Measure:
    rows = (
        Row(
            end,
            f"1 GB argument: peak memory of the {end}, times the argument",
            Unit.TIMES,
            at_most("peak", end, 1.2, "<= 1.2 x"),
        )
        for end in ("sender", "receiver")
    )
    return Measure("peak", tuple(rows))


TRANSFERS: tuple[Measure, ...] = (
    speeds(
        "array_arg",
        "256 MB argument, ends read",
        both(
            at_least("array_arg", "warm", 3e9, ">= 3 GB/s"),
            at_least_part_of("raw", "array_arg", "warm", 0.5),
        ),
    ),
    speeds("array_sum", "256 MB argument, summed", at_least_part_of("ray", "array_sum", "warm", 1)),
    speeds(
        "array_result",
        "256 MB result",
        cold=at_least_part_of("raw", "array_result", "cold", 0.8),
    ),
    Measure(
        "array_cast",
        (
            Row("time", f"256 MB argument to {CAST_RANKS} ranks", Unit.SECONDS),
            Row(
                "times_one",
                f"256 MB to {CAST_RANKS} ranks, times that of one",
                Unit.TIMES,
                at_most("array_cast", "times_one", 1.3, "<= 1.3 x", MACHINE_WHY),
            ),
        ),
        deadline_s=240,
    ),
    Measure(
        "bytes",
        tuple(
            Row(figure, label, Unit.SECONDS, at_most("bytes", figure, 10e-3, "<= 10 ms"))
            for figure, label in (
                ("argument", "10 MB of bytes as argument to 2 ranks"),
                ("text", "10 MB of text as argument to 2 ranks"),
                ("result", "10 MB of bytes as result"),
            )
        ),
    ),
    Measure(
        "broadcast",
        (
            Row(
                "bytes",
                "broadcast of 16 MiB of bytes, until the sender goes on",
                Unit.SECONDS,
                at_most("broadcast", "bytes", 1e-3, "<= 1 ms"),
            ),
            Row("array", "the same of an array, which may change right after", Unit.SECONDS),
        ),
    ),
    _rdma(),
    _beside(),
    _peak(),
)
