"""The same faults under other systems, by the measures of the benchmarks, one after the other.

Their interpreter is the one that MONARCH_NB_PEERS_PYTHON names. What takes a system a minute is
asked a few times only.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import runner
from benchmarks.systems import OURS, System, peers

FAULTS: Final = {
    "kill": "SIGKILL of a rank in a call, until the caller knows",
    "stop": "SIGSTOP of a rank in a call, until the caller knows",
    "owner": "SIGKILL of the program, until no process of it is left",
}
ROUNDS: Final = 50
SLOW_S: Final = 5.0  # a system that took longer is asked
SLOW_ROUNDS: Final = 3  # so often
DEADLINE_S: Final = 180.0


@dataclass(frozen=True)
class Rival:
    """One system and one fault. `failed`: what the rounds without a figure said."""

    fault: str
    system: str
    times_s: Sequence[float]
    failed: Sequence[str]

    @property
    def told(self) -> str:
        rounds = f"{len(self.times_s) + len(self.failed)}"
        if not self.times_s:
            return f"{rounds} | - | {self.failed[0] if self.failed else 'not measured'} | -"
        said = f"; {len(self.failed)} failed" if self.failed else ""
        least, most = min(self.times_s), max(self.times_s)
        return f"{rounds}{said} | {least:.3g} | {median(self.times_s):.3g} | {most:.3g}"


def measure(path: Path) -> None:
    """Measure all of them, and keep each outcome as it comes."""
    found: list[Rival] = []
    for fault, system in ((fault, system) for fault in FAULTS for system in (OURS, *peers())):
        if system.offers(fault):
            found.append(_measured(fault, system))
            print(f"    {found[-1].system}: {found[-1].fault}: {found[-1].told}", flush=True)
            path.write_text(json.dumps(list(map(asdict, found)), indent=1) + "\n")


def load(path: Path) -> list[Rival]:
    """Return what was kept; nothing where there is no file."""
    return [Rival(**each) for each in json.loads(path.read_text())] if path.exists() else []


def _measured(fault: str, system: System) -> Rival:
    times: list[float] = []
    failed: list[str] = []
    for outcome in _rounds(fault, system):
        value = outcome.figures.get("time")
        if isinstance(value, int | float):
            times.append(float(value))
        else:
            failed.append(str(outcome.error or value))
        slow = failed or times[-1] > SLOW_S
        if slow and len(times) + len(failed) >= SLOW_ROUNDS:
            break
    return Rival(FAULTS[fault], system.name, times, failed)


def _rounds(fault: str, system: System) -> Iterator[runner.Outcome]:
    own = system.distribution is None
    python = sys.executable if own else os.environ.get("MONARCH_NB_PEERS_PYTHON", sys.executable)
    for _ in range(ROUNDS):
        yield runner.run(python, system.module, fault, DEADLINE_S)
