"""What is measured of meshes that outlive their kernel, and what is aimed for."""

from benchmarks.targets import MACHINE_WHY, Measure, Row, Unit, at_most

LASTING: tuple[Measure, ...] = (
    Measure(
        "kept_restart",
        (
            Row(
                "time",
                "kernel restarted, until a cell has run on the kept mesh of 64 ranks",
                Unit.SECONDS,
                at_most("kept_restart", "time", 2.0, "<= 2 s", MACHINE_WHY),
            ),
            Row(
                "attach",
                "the same, once the kernel is up: %mesh attach, and the cell",
                Unit.SECONDS,
                at_most("kept_restart", "attach", 1.0, "<= 1 s", MACHINE_WHY),
            ),
        ),
        deadline_s=300,
        ranks=64,
        quick=False,
    ),
    Measure(
        "kept_lines",
        (
            Row(
                "lost",
                "of 10^6 lines printed while the kernel was away, lost",
                Unit.COUNT,
                at_most("kept_lines", "lost", 0, "0"),
            ),
            Row(
                "doubled",
                "the same, doubled",
                Unit.COUNT,
                at_most("kept_lines", "doubled", 0, "0"),
            ),
        ),
        deadline_s=300,
        quick=False,
    ),
)
