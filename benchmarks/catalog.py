"""What is measured, in which order, and what is aimed for."""

from benchmarks.catalog_debugging import DEBUGGING
from benchmarks.catalog_gpu import GPU
from benchmarks.catalog_hosts import HOSTS
from benchmarks.catalog_lasting import LASTING
from benchmarks.catalog_tensors import TENSORS
from benchmarks.catalog_transfers import TRANSFERS
from benchmarks.measures import CAST, SPAWNED
from benchmarks.targets import (
    MACHINE_WHY,
    Measure,
    Row,
    Unit,
    at_least,
    at_most,
    both,
    faster_than,
    within_times_of_raw,
)

_CALL_WHY = (
    "pickling, futures and actors are Python; each end changes threads once, from the one that "
    "reads to the one that works, so that a busy rank can be interrupted"
)
_CELL_WHY = "a cell in a kernel without ranks (column raw) takes most of it"
_FIRST_WHY = (
    "importing torch takes a second, once per host; a Monarch kernel does it before it is asked: "
    "see the rows of ranks in a notebook"
)
_VIEW_WHY = (
    "the row below is what ipykernel takes to send such a message, which alone reaches the limit; "
    "whatever runs ten times a second finds nothing of its own in the processor's caches"
)
_BOARD_WHY = (
    "two records a call, of 1 us each when nothing else has used the processor's caches, and of "
    "2 to 4 us when others have"
)
_SEEN = "a rank does something else while a cell blocks the kernel, until its pixel shows it"
_CAST_S = {4: 0.35e-3, 16: 1.2e-3, 64: 6e-3}


def _cast(ranks: int) -> Measure:
    limit = _CAST_S[ranks]
    target = at_most(f"cast_{ranks}", "time", limit, f"<= {limit * 1e3:g} ms", MACHINE_WHY)
    label = f"call on {ranks} ranks, round trip"
    return Measure(
        f"cast_{ranks}",
        (Row("time", label, Unit.SECONDS, target),),
        deadline_s=300,
        ranks=ranks,
        quick=ranks < 64,
    )


def _spawn(ranks: int, loaded: bool) -> Measure:
    name = f"spawn_{ranks}" if loaded else f"bare_{ranks}"
    what = f"spawn {ranks} ranks{', torch loaded' if loaded else ', no torch'}"
    aimed = loaded and ranks == 64
    first = at_most(name, "first", 1.5, "<= 1.5 s", _FIRST_WHY)
    again = at_most(name, "again", 1.5, "<= 1.5 s", MACHINE_WHY)
    memory = at_most(name, "private", 15e6, "<= 15 MB")
    rows = (
        Row("first", f"{what}: first of its process", Unit.SECONDS, first if aimed else None),
        Row("again", f"{what}: a second time", Unit.SECONDS, again if aimed else None),
        Row("private", f"{what}: private memory of each", Unit.BYTES, memory if aimed else None),
    )
    return Measure(name, rows, deadline_s=300, ranks=ranks, quick=ranks <= 16)


def _tab(busy: str, where: str) -> tuple[Row, ...]:
    text = f"Tab in a %%mesh cell while ranks {where}"
    return tuple(
        Row(
            f"{busy}_{figure}",
            f"{text}, {words}",
            Unit.SECONDS,
            at_most("tab", f"{busy}_{figure}", 0.3, "<= 300 ms"),
        )
        for figure, words in (("median", "median"), ("worst", "worst of 20"))
    )


def _known(name: str, label: str, limit_s: float) -> tuple[Row, ...]:
    target = at_most(name, "time", limit_s, f"<= {limit_s:g} s")
    return (Row("time", label, Unit.SECONDS, target),)


def _owner(name: str, label: str) -> Measure:
    why = "the machine takes down the memory of each process first; the agent of the host ends last"
    target = at_most(name, "time", 0.015, "<= 15 ms", why)
    return Measure(name, (Row("time", label, Unit.SECONDS, target),), deadline_s=200, rounds=5)


MEASURES: tuple[Measure, ...] = (
    Measure(
        "call",
        (
            Row(
                "time",
                "one call, round trip",
                Unit.SECONDS,
                both(
                    within_times_of_raw("call", "time", 2.5, _CALL_WHY),
                    faster_than("torchmonarch", "call", "time", 4),
                ),
            ),
        ),
        rounds=3,
    ),
    Measure(
        "flight",
        (
            Row(
                "rate",
                "5 000 calls in flight to one actor",
                Unit.PER_SECOND,
                at_least("flight", "rate", 40_000, ">= 40 000/s"),
            ),
        ),
        deadline_s=180,
        rounds=3,
    ),
    *(_cast(ranks) for ranks in CAST),
    Measure(
        "board",
        (
            Row(
                "told",
                "a rank tells what it does: a call, times one of a rank that does not",
                Unit.TIMES,
                at_most("board", "told", 1.02, "<= 1.02 x", _BOARD_WHY),
            ),
            Row(
                "seen",
                "somebody looks, ten times a second: a call, times one that nobody sees",
                Unit.TIMES,
                at_most("board", "seen", 1.02, "<= 1.02 x"),
            ),
        ),
        deadline_s=180,
        rounds=3,
    ),
    Measure(
        "look",
        (
            Row(
                "agent",
                "64 ranks with news, an update: processor time of their host's agent",
                Unit.SECONDS,
                at_most("look", "agent", 1e-3, "<= 1 ms", MACHINE_WHY),
            ),
            Row(
                "own",
                "the same: of the controller, snapshot included",
                Unit.SECONDS,
                at_most("look", "own", 2e-3, "<= 2 ms", MACHINE_WHY),
            ),
        ),
        ranks=64,
        quick=False,
    ),
    Measure(
        "view",
        (
            Row(
                "cpu",
                "64 ranks with news seen by a page, an update: processor time of the kernel",
                Unit.SECONDS,
                at_most("view", "cpu", 1e-3, "<= 1 ms", _VIEW_WHY),
            ),
            Row(
                "floor",
                "the same kernel, a thread that sends a ready message of that size as often",
                Unit.SECONDS,
            ),
            Row(
                "bytes",
                "64 ranks with news seen by a page: to the page, each second",
                Unit.BYTES,
                at_most("view", "bytes", 20 * 1024, "<= 20 KiB/s"),
            ),
        ),
        deadline_s=180,
        ranks=64,
        quick=False,
    ),
    Measure(
        "seen",
        (
            Row("change_median", f"{_SEEN}, median", Unit.SECONDS),
            Row(
                "change_p95",
                f"{_SEEN}, 95 of 100 within",
                Unit.SECONDS,
                at_most("seen", "change_p95", 0.15, "<= 150 ms", MACHINE_WHY),
            ),
            Row(
                "death_worst",
                "SIGKILL of a rank until its pixel is red, worst of 10",
                Unit.SECONDS,
                at_most("seen", "death_worst", 0.5, "<= 500 ms"),
            ),
        ),
        deadline_s=240,
        quick=False,
    ),
    Measure(
        "pan",
        (
            Row(
                "rate",
                "a page pans over 1 024 ranks that change, frames",
                Unit.PER_SECOND,
                at_least("pan", "rate", 30, ">= 30/s"),
            ),
            Row(
                "task",
                "the same: the longest task, 0 where none takes 50 ms",
                Unit.SECONDS,
                at_most("pan", "task", 0.05, "<= 50 ms", MACHINE_WHY),
            ),
        ),
        quick=False,
    ),
    Measure(
        "cell",
        (
            Row(
                "time",
                "a cell on 4 ranks, seen by a Jupyter client",
                Unit.SECONDS,
                at_most("cell", "time", 5e-3, "<= 5 ms", _CELL_WHY),
            ),
        ),
        deadline_s=180,
    ),
    Measure(
        "cell_first",
        (Row("time", "4 ranks up in a notebook, and a first cell on them", Unit.SECONDS),),
        deadline_s=180,
        quick=False,
    ),
    Measure(
        "cell_first_64",
        (
            Row(
                "time",
                "64 ranks up in a notebook, and a first cell on them",
                Unit.SECONDS,
                at_most("cell_first_64", "time", 1.5, "<= 1.5 s", MACHINE_WHY),
            ),
        ),
        deadline_s=180,
        rounds=3,
        quick=False,
    ),
    *DEBUGGING,
    *LASTING,
    Measure("tab", (*_tab("sleep", "sleep"), *_tab("loop", "loop in Python")), deadline_s=180),
    Measure(
        "print",
        (
            Row(
                "time",
                "a print on 4 ranks until a Jupyter client has it",
                Unit.SECONDS,
                at_most("print", "time", 5e-3, "<= 5 ms", MACHINE_WHY),
            ),
        ),
        deadline_s=180,
    ),
    Measure(
        "paced",
        (
            Row(
                "bytes",
                "100 lines x 100 B x 4 ranks at 50 Hz, messages of the cell",
                Unit.BYTES,
                at_most("paced", "bytes", 120 * 1024, "<= 120 KiB"),
            ),
        ),
        deadline_s=180,
    ),
    Measure(
        "interrupt",
        (
            Row(
                "prompt",
                "the stop button while 4 ranks sleep: the prompt is back",
                Unit.SECONDS,
                at_most("interrupt", "prompt", 0.3, "<= 0.3 s"),
            ),
            Row(
                "free",
                "the same: a next cell has run on the ranks",
                Unit.SECONDS,
                at_most("interrupt", "free", 1.0, "<= 1 s"),
            ),
            Row(
                "dropped",
                "the same, 3 times: cells dropped before that one",
                Unit.COUNT,
                at_most("interrupt", "dropped", 0, "none"),
            ),
        ),
        deadline_s=180,
    ),
    Measure(
        "flood",
        (
            Row(
                "time",
                "a million lines of one rank, all in its log",
                Unit.SECONDS,
                at_most("flood", "time", 8.0, "<= 8 s", MACHINE_WHY),
            ),
            Row(
                "answer",
                "1+1 in the kernel meanwhile, the slowest",
                Unit.SECONDS,
                at_most("flood", "answer", 0.3, "<= 0.3 s", MACHINE_WHY),
            ),
        ),
        deadline_s=180,
        quick=False,
    ),
    *TRANSFERS,
    *HOSTS,
    *TENSORS,
    *GPU,
    Measure(
        "first_call",
        _known("first_call", "a program without torch, from its start to its first answer", 0.6),
    ),
    *(_spawn(ranks, loaded=True) for ranks in SPAWNED),
    *(_spawn(ranks, loaded=False) for ranks in SPAWNED[:-1]),
    Measure("kill", _known("kill", "SIGKILL of a busy rank until its caller knows", 0.1), rounds=3),
    Measure(
        "stop",  # no target: a stopped rank may go on, so its status says silent first (next row)
        (Row("time", "SIGSTOP of a busy rank until its caller knows", Unit.SECONDS),),
        quick=False,
    ),
    Measure("silent", _known("silent", "SIGSTOP of a busy rank until its status says silent", 2.5)),
    _owner("owner", "owner of 4 ranks with torch SIGKILLed until nothing is left"),
    _owner("owner_bare", "the same of a program without torch"),
)
