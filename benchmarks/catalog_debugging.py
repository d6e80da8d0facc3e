"""What is measured of debuggers and of hangs, and what is aimed for."""

from benchmarks.targets import MACHINE_WHY, Measure, Row, Unit, at_most


def _prompt() -> Measure:
    aims = {
        "asks": ("breakpoint() on 4 ranks, from the cell being sent to the prompt in it", 0.15),
        "answers": ("a command of pdb on one rank, until the next prompt", 0.03),
        "cast": ("a command to all of 16 ranks, until the next prompt", 0.1),
    }
    rows = (
        Row(key, text, Unit.SECONDS, at_most("prompt", key, s, f"<= {s * 1e3:g} ms", MACHINE_WHY))
        for key, (text, s) in aims.items()
    )
    return Measure("prompt", tuple(rows), deadline_s=180, ranks=16)


def _debugger() -> Measure:
    aims = {
        "attach": ("JupyterLab's debugger turned on, for one rank of 4, first time", 1.5),
        "attach_all": ("the same, for all 4 ranks", 1.5),
        "stop": ("a %%mesh cell sent, until its breakpoint's variables are there", 0.5),
        "step": ("a step, until the variables are there", 0.15),
    }
    rows = (
        Row(key, text, Unit.SECONDS, at_most("debugger", key, s, f"<= {s:g} s", MACHINE_WHY))
        for key, (text, s) in aims.items()
    )
    return Measure("debugger", tuple(rows), deadline_s=180)


DEBUGGING: tuple[Measure, ...] = (
    _debugger(),
    _prompt(),
    Measure(
        "stacks",
        (
            Row(
                "time",
                "%mesh stacks of 16 ranks, C code holds the interpreter of one",
                Unit.SECONDS,
                at_most("stacks", "time", 0.3, "<= 300 ms", MACHINE_WHY),
            ),
            Row("worst", "the same, worst of 10", Unit.SECONDS),
        ),
        deadline_s=180,
        ranks=16,
    ),
    Measure(
        "mismatch",
        (
            Row(
                "time",
                "a rank does not come to a collective, until the cell says so",
                Unit.SECONDS,
                at_most("mismatch", "time", 5.0, "<= 5 s"),
            ),
        ),
        deadline_s=180,
    ),
    Measure(
        "waits",
        (
            Row("all_reduce", "gloo's all_reduce, its wait can be interrupted", Unit.TIMES),
            Row("send", "gloo's send and recv, and a barrier, the same", Unit.TIMES),
        ),
        deadline_s=180,
    ),
)
