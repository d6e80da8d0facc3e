"""`python -m tests.soak [--minutes 10] [--seed N]`: a kernel is used, hurt and watched.

Acts (`tests/soak/acts`) are chosen by the seed; each checks its answers. In quiet moments it is
looked from outside at what the processes hold. In the end nothing may have grown, and nothing may
be left. The exit code is 1 where an answer was wrong or late, or something has grown or was left.
"""

import argparse
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from jupyter_core.utils import ensure_event_loop

from tests import support
from tests.soak import measures, slopes
from tests.soak.acts import calls, cells, data, faults, hosts, kernels, looks
from tests.soak.stage import Stage
from tests.soak.world import world

ROOMS = (cells, calls, data, faults, hosts, looks, kernels)
LONGEST_S = 400  # of an act
SAMPLE_S = 10.0
JUDGED_S = 240.0  # a shorter run says nothing about slopes
CELLS = 1_100  # of which a kernel, and each rank, keeps the last 1000
LINES = 22_000  # of which a kernel keeps the last 20,000 of each rank


def main(words: list[str]) -> int:
    """Run a soak, and print what has grown. 1 where it has failed."""
    parser = argparse.ArgumentParser(prog="make soak", description="Use a kernel for a long time.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--light", action="store_true", help="without PyTorch")
    parser.add_argument("--only", default="", help="acts whose names have one of these words: a,b")
    chosen = parser.parse_args(words)
    print(f"seed {chosen.seed}", flush=True)
    ensure_event_loop()  # jupyter_client keeps one; it is no leak
    with world("none" if chosen.light else "torch,numpy") as made:
        stage = Stage(made, chosen.seed, has_torch=not chosen.light)
        soak = Soak(stage, chosen.minutes * 60, chosen.only)
        try:
            soak.run()
        except BaseException as error:
            report(stage, soak, error)
            stage.abandon()
            return 1
        return int(not soak.is_well(made.left()))


class Soak:
    """Acts and samples until the time is over."""

    def __init__(self, stage: Stage, for_s: float, only: str) -> None:
        self.stage = stage
        self.for_s = for_s
        self.step = 0
        self.done: dict[str, int] = {}
        self.samples: list[measures.Sample] = []
        left_out = set() if stage.has_torch else {a for r in ROOMS for a in _wants_torch(r)}
        self.acts = {
            act: weight
            for room in ROOMS
            for act, weight in room.ACTS.items()
            if act not in left_out and any(word in name_of(act) for word in only.split(","))
        }

    def run(self) -> None:
        """Begin, play, end. What is wrong is raised."""
        with limited("the start"):
            self.stage.begin()
        if self.for_s >= JUDGED_S:
            self._warm_up()
        began = time.monotonic()
        next_sample = began
        while time.monotonic() < began + self.for_s:
            if time.monotonic() >= next_sample:
                self._sample(began)
                next_sample = time.monotonic() + SAMPLE_S
            self._act()
        self._sample(began)
        assert not (late := self.stage.ledger.left()), f"ran without being asked: {late}"
        with limited("the end"):
            self.stage.end()

    def is_well(self, left: list[str]) -> bool:
        """Print the tables; whether nothing has grown and nothing is left."""
        for name, count in sorted(self.done.items()):
            print(f"  {count:5}  {name}")
        found = self.show()
        is_judged = self.for_s >= JUDGED_S and len(self.samples) >= slopes.FEWEST
        grows = is_judged and any(each.is_too_much for each in found)
        print(f"{self.step} steps, {self.stage.cells} cells: every answer was right")
        print("slopes are not judged in so short a time" if not is_judged else
              "something has grown" if grows else "nothing has grown")  # fmt: skip
        print("left behind:" if left else "nothing is left", *left, sep="\n  ", flush=True)
        return not left and not grows

    def show(self) -> list[slopes.Growth]:
        """Print what has grown by how much, and return it."""
        found = slopes.growths(self.samples)
        print(slopes.table(found))
        print("objects of the kernel, more than after the warm-up:")
        print(*slopes.kinds_that_grew(self.samples), sep="\n")
        return found

    def _act(self) -> None:
        self._play(self.stage.dice.choices(list(self.acts), list(self.acts.values()))[0])

    def _play(self, act: Callable[[Stage], None]) -> None:
        self.step += 1
        name = name_of(act)
        self.stage.note(f"step {self.step}: {name}")
        began = time.monotonic()
        with limited(name):
            act(self.stage)
        self.stage.note(f"step {self.step}: {name} took {time.monotonic() - began:.2f} s")
        self.done[name] = self.done.get(name, 0) + 1
        self.stage.kernel.cells.clear()
        self.stage.kernel.others.clear()

    def _sample(self, began: float) -> None:
        with limited("a sample"):
            sample = measures.take(self.stage, began, self.step)
        self.samples.append(sample)
        of = sample.series
        print(
            f"{sample.at_s:6.0f} s  step {self.step:5}  kernel {of['memory of kernel']:6.1f} MB"
            f" {of['fds of kernel']:3.0f} fds {of['threads of kernel']:3.0f} threads"
            f" {of['objects of kernel']:7.0f} objects; agent {of['memory of agent']:5.1f} MB"
            f" {of['fds of agent']:3.0f} fds; zygote {of['memory of zygote']:5.1f} MB;"
            f" {of['files in the run dir']:.0f} files",
            flush=True,
        )

    def _warm_up(self) -> None:
        """Load what is loaded at first use, and fill what is bounded."""
        again = [act for act in self.acts if act in data.ACTS] * 8  # both ranks in each part
        for act in [*self.acts, *again]:
            self._play(act)
        for number in range(CELLS):
            self.stage.ok(f"%%mesh @main\nfilled = {number}\nprint(filled)")
            self.stage.kernel.cells.clear()
        self.stage.ok(
            f"for filled in range({CELLS}):\n"
            "    get_ipython().run_cell_magic('mesh', '@steady', f'filled = {filled}')"
        )
        for mesh in ("main", "steady"):
            self.stage.ok(f"%%mesh @{mesh}\nfor i in range({LINES}): print('fills', i)")


def name_of(act: Callable[[Stage], None]) -> str:
    return f"{act.__module__.rpartition('.')[2]}.{act.__name__}"


def _wants_torch(room: object) -> set[Callable[[Stage], None]]:
    return getattr(room, "WANT_TORCH", set())


@contextmanager
def limited(what: str):
    """Nothing may hang: raise `TimeoutError` where this takes too long."""

    def over(*_: object) -> None:
        raise TimeoutError(f"{what} has not ended within {LONGEST_S} s")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)


def report(stage: Stage, soak: Soak, error: BaseException) -> None:
    """Print what there is to find the cause: the seed, the step, what was done, stacks."""
    print(f"FAILED at step {soak.step}, seed {stage.seed}. The last that was done:")
    print(*stage.notes, sep="\n")
    traceback.print_exception(error)
    if len(soak.samples) > 1:
        soak.show()
    for pid in sorted(support.session_processes()):
        print(f"---- {support.describe_process(pid)}\n{_stacks(pid)}", flush=True)


def _stacks(pid: int) -> str:
    tool = Path(sys.executable).with_name("py-spy")
    try:
        done = subprocess.run(
            [tool, "dump", "--pid", str(pid)],
            capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stacks: {error}"
    return done.stdout or done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
