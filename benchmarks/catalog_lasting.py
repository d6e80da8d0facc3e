"""What is measured of meshes that outlive their kernel, and of training that outlives a rank; and
what is aimed for.
"""

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
    Measure(
        "elastic_kill",
        (
            Row(
                "time",
                "SIGKILL of a rank in a DDP step until all 4 have taken it, 100 M parameters",
                Unit.SECONDS,
                at_most("elastic_kill", "time", 2.5, "<= 2.5 s", MACHINE_WHY),
            ),
            Row("step", "a step of that training", Unit.SECONDS),
        ),
        deadline_s=300,
        quick=False,
    ),
    Measure(
        "elastic_cost",
        (
            Row(
                "ratio",
                "steps of that training in an elastic loop, times those in a plain one",
                Unit.TIMES,
                at_most("elastic_cost", "ratio", 1.03, "<= 1.03 x", MACHINE_WHY),
            ),
            Row("step", "such a step, in a plain loop", Unit.SECONDS),
            Row("begin", "what the elastic loop takes longer for its first steps", Unit.SECONDS),
            Row("small", "the same, of a model of 0.5 M parameters", Unit.TIMES),
            Row("small_step", "such a step, in a plain loop", Unit.SECONDS),
        ),
        deadline_s=600,
        quick=False,
    ),
    Measure(
        "elastic_snapshots",
        (
            Row(
                "ratio",
                "steps of 25 M parameters cut by fully_shard, with snapshots, times those without",
                Unit.TIMES,
                at_most("elastic_snapshots", "ratio", 1.03, "<= 1.03 x"),
            ),
            Row("step", "such a step, without snapshots", Unit.SECONDS),
        ),
        deadline_s=900,
        quick=False,
    ),
)
