"""The command: run rows, keep what came of them, and write docs/faults.md."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.faults import found, page, rivals
from benchmarks.faults.rows import ROWS, Row
from benchmarks.report import machine

ROOT: Final = Path(__file__).parent.parent.parent
KEPT: Final = ROOT / "benchmarks/FAULTS.json"
KEPT_OF_RIVALS: Final = ROOT / "benchmarks/FAULTS_RIVALS.json"
PAGE: Final = ROOT / "docs/faults.md"
TEST_S: Final = 300  # a run that takes longer hangs


def main(words: Sequence[str]) -> int:
    """Run the rows that are wanted, and write the page. 1 where a promise was not kept."""
    options = _options(words)
    kept = found.load(KEPT)
    for row in [] if options.render else options.rows:
        print(f"{row.number:2}  {row.fault} ...", end=" ", flush=True)
        kept[row.number] = outcome = _run(row, options.runs)
        found.save(kept, KEPT)
        print(_said(outcome), flush=True)
    if options.rivals:
        rivals.measure(KEPT_OF_RIVALS)
    PAGE.write_text(page.text(kept, rivals.load(KEPT_OF_RIVALS), machine()))
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0 if all(kept[row.number].is_kept for row in options.rows if row.number in kept) else 1


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks faults",
        description="Inject each fault many times, and write down which promises were kept.",
    )
    parser.add_argument("--runs", type=int, default=50, help="of each test (50)")
    parser.add_argument("--rows", type=_rows, default=ROWS, metavar="NUMBER,...")
    parser.add_argument("--rivals", action="store_true", help="measure other systems too")
    parser.add_argument("--render", action="store_true", help="run nothing, write the page again")
    return parser.parse_args(words)


def _rows(words: str) -> list[Row]:
    known = {str(row.number): row for row in ROWS}
    chosen = words.split(",")
    if unknown := [each for each in chosen if each not in known]:
        raise argparse.ArgumentTypeError(f"no row {unknown[0]!r}; they are 1 to {len(ROWS)}")
    return [known[each] for each in chosen]


def _run(row: Row, runs: int) -> found.Found:
    """Run the tests of a row, those that run equally often in one process."""
    when, load = datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), os.getloadavg()[0]
    wanted = row.runs(runs)
    lines: list[dict[str, Any]] = []
    for count in sorted(set(wanted.values())):
        lines += _pytest([each for each in row.tests if wanted[each] == count], count)
    return found.sum_up(lines, when, load)


def _pytest(tests: Sequence[str], runs: int) -> list[dict[str, Any]]:
    """Run these tests so often; return what the plugin wrote. Raises `SystemExit` where it wrote
    nothing."""
    with tempfile.TemporaryDirectory() as folder:
        record, log = Path(folder) / "record", Path(folder) / "log"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.faults.repeating"]
        options = ["-p", "no:cacheprovider", f"--timeout={TEST_S}", "-o", "faulthandler_timeout=0"]
        wanted = ["--runs", str(runs), "--record", str(record), *tests]
        with log.open("wb") as out:
            done = subprocess.run(
                [*command, *options, *wanted],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                check=False,
            )
        lines = list(_lines(record))
        said = log.read_text(errors="replace")[-3000:]
        if not lines:
            raise SystemExit(f"pytest did not run {', '.join(tests)}:\n{said}")
        if done.returncode not in (0, 1):
            print(said, file=sys.stderr)
    return lines


def _lines(record: Path) -> Iterator[dict[str, Any]]:
    if record.exists():
        for line in record.read_text().splitlines():
            fields: dict[str, Any] = json.loads(line)
            yield fields


def _said(outcome: found.Found) -> str:
    short = [each.what for each in outcome.figures if not each.is_kept]
    said = f"{outcome.held} of {outcome.runs} runs"
    said += f", {outcome.skipped} skipped" if outcome.skipped else ""
    said += f"; over the goal: {', '.join(short)}" if short else ""
    for case, why in outcome.failures.items():
        said += f"\n      {case}: {why.splitlines()[0] if why else ''}"
    return said
