"""The command: which systems, which measures, progress, and the file that is written. With the word
`faults` it is another one, of benchmarks/faults.

Measures are the outer loop: what is compared is measured one after the other, on a machine in the
same mood.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import record, report, runner
from benchmarks.catalog import MEASURES
from benchmarks.faults import command as faults
from benchmarks.report import Run
from benchmarks.runner import Outcome
from benchmarks.systems import OURS, RAW, System, peers
from benchmarks.targets import Measure, Row

PEERS_PYTHON = "MONARCH_NB_PEERS_PYTHON"
T = TypeVar("T")
BESIDE = ["torch", "pyzmq", "numpy", "cloudpickle", "ipykernel", "jupyter_client"]


@dataclass(frozen=True)
class Place:
    """Where a system runs, or why it cannot."""

    python: str
    missing: str | None = None


def main() -> int:
    if sys.argv[1:2] == ["faults"]:
        return faults.main(sys.argv[2:])
    options = _options()
    console = Console(stderr=True)
    kept = options.out.with_suffix(".json")
    if options.render:
        return _write(record.load(kept), options.out, console)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("benchmarks: ended by SIGTERM"))
    chosen = [OURS, RAW, *options.peers]
    python = os.environ.get(PEERS_PYTHON, sys.executable)
    versions = _versions(python, chosen)
    places = {system.name: _place(system, python, versions["peers"]) for system in chosen}
    run = Run(
        systems=[system.name for system in chosen],
        measures=options.only,
        versions={role: found for role, found in versions.items() if found},
        remarks=_remarks(options),
    )
    runs = report.with_run(run, record.load(kept) if options.add else [])
    _measure_all(run, chosen, places, options, console, lambda: record.save(runs, kept))
    return _write(runs, options.out, console)


def _write(runs: Sequence[Run], path: Path, console: Console) -> int:
    path.write_text(report.text(runs))
    for label, (holds, compared) in chain.from_iterable(map(report.judged, runs)):
        word = {True: "[green]pass", False: "[red]falls short", None: "[yellow]not known"}[holds]
        console.print(f"{word}[/]  {label}  [dim]{compared}")
    console.print(f"written: {path}")
    return 0


# ----------------------------------------------------------------------------------------- options


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure monarch_nb beside the raw floor and its peers.",
        epilog=f"Peers run under the interpreter that {PEERS_PYTHON} names, else under this one; "
        "benchmarks/peers.txt says how to make it.",
    )
    parser.add_argument("--peers", type=_peers, default="auto", metavar="auto|none|NAME,...")
    parser.add_argument("--only", type=_measures, default=None, metavar="MEASURE,...")
    parser.add_argument(
        "--add", action="store_true", help="to the record: other measures keep their earlier run"
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions, small sizes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "RESULTS.md")
    parser.add_argument("--remark", action="append", default=[], help="a line for the head")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing: write RESULTS.md from the record"
    )
    options = parser.parse_args()
    options.partial = options.only is not None and not options.add
    options.only = options.only or [m for m in MEASURES if m.quick or not options.quick]
    return options


def _peers(names: str) -> list[System]:
    known = {peer.name: peer for peer in peers()}
    if names in ("auto", "none"):
        return list(known.values()) if names == "auto" else []
    return [_pick(known, name, "peer") for name in names.split(",")]


def _measures(names: str) -> list[Measure]:
    known = {measure.name: measure for measure in MEASURES}
    return [_pick(known, name, "measure") for name in names.split(",")]


def _pick(known: dict[str, T], name: str, kind: str) -> T:
    if name not in known:
        raise argparse.ArgumentTypeError(f"no {kind} {name!r}; there are {', '.join(known)}")
    return known[name]


def _remarks(options: argparse.Namespace) -> list[str]:
    remarks = []
    if options.quick:
        remarks.append("**quick run**: few repetitions, not for publication")
    if options.partial:
        remarks.append("**partial run**: only " + ", ".join(m.name for m in options.only))
    return [*remarks, *options.remark]


# ----------------------------------------------------------------------------------------- systems


def _versions(peers_python: str, chosen: Sequence[System]) -> dict[str, dict[str, str]]:
    distributions = [system.distribution for system in chosen if system.distribution]
    return {
        "monarch_nb and raw": runner.versions(sys.executable, [OURS.name, *BESIDE]),
        "peers": runner.versions(peers_python, [*distributions, *BESIDE]) if distributions else {},
    }


def _place(system: System, peers_python: str, found: dict[str, str]) -> Place:
    if system.distribution is None:
        return Place(sys.executable)
    if not found:
        return Place(peers_python, f"{peers_python} (from {PEERS_PYTHON}) cannot be started")
    if system.distribution not in found:
        return Place(peers_python, f"{system.distribution} is not installed where peers run")
    return Place(peers_python)


# --------------------------------------------------------------------------------------- measuring


def _measure_all(
    run: Run,
    chosen: Sequence[System],
    places: dict[str, Place],
    options: argparse.Namespace,
    console: Console,
    save: Callable[[], None],
) -> None:
    quick = options.quick
    work = list(_work(run.measures, chosen, quick))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(work))
        for measure, system in work:
            progress.update(bar, description=f"{measure.name} {system.name}")
            outcome = _measure(run, measure, system, places[system.name], quick)
            run.outcomes.setdefault((system.name, measure.name), []).append(outcome)
            save()
            progress.console.print(_told(measure, system, outcome), highlight=False)
            if system is OURS and outcome.log:
                progress.console.print(outcome.log, style="dim", markup=False, highlight=False)
            progress.advance(bar)


def _work(
    measures: Sequence[Measure], chosen: Sequence[System], quick: bool
) -> Iterator[tuple[Measure, System]]:
    """Rounds go around all systems, so that none of them gets the quiet minute alone."""
    for measure in measures:
        for _ in range(1 if quick else measure.rounds):
            yield from ((measure, system) for system in chosen if system.offers(measure.name))


def _measure(run: Run, measure: Measure, system: System, place: Place, quick: bool) -> Outcome:
    if place.missing:
        return Outcome(error=place.missing)
    if too_much := _too_much(run, measure, system):
        return Outcome(error=too_much)
    return runner.run(place.python, system.module, measure.name, measure.deadline_s, quick)


def _too_much(run: Run, measure: Measure, system: System) -> str | None:
    """Judged by the next smaller size of the same measure: no machine is driven into the ground."""
    family = measure.name.rpartition("_")[0]
    smaller = [
        other
        for other in run.measures
        if other.name.startswith(f"{family}_") and 0 < other.ranks < measure.ranks
    ]
    if not smaller:
        return None
    before = max(smaller, key=lambda other: other.ranks)
    if any(outcome.error for outcome in run.outcomes.get((system.name, before.name), ())):
        return f"{before.ranks} ranks were not possible already"
    times = measure.ranks / before.ranks
    needed = times * sum(run.figure(system.name, before.name, f) or 0 for f in ("first", "again"))
    if needed > measure.deadline_s:
        return (
            f"{measure.ranks} ranks would take about {needed:.0f} s, by the time of {before.ranks}"
        )
    private = measure.ranks * (run.figure(system.name, before.name, "private") or 0)
    if private > 0.7 * _available_bytes():
        return f"{measure.ranks} ranks would need about {private / 1e9:.0f} GB of memory"
    return None


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024


def _told(measure: Measure, system: System, outcome: Outcome) -> str:
    start = f"{measure.name:>12}  {system.name:<14}"
    left = f"  [yellow]left {outcome.left} processes[/]" if outcome.left else ""
    if outcome.error:
        return f"{start}[yellow]not run:[/] {outcome.error}{left}"
    figures = [
        f"{row.figure} {_figure(outcome.figures.get(row.figure, '-'), row)}" for row in measure.rows
    ]
    return f"{start}{', '.join(figures)}{left}"


def _figure(value: float | str, row: Row) -> str:
    return value if isinstance(value, str) else report.shown(value, row.unit)


if __name__ == "__main__":
    sys.exit(main())
