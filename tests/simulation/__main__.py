"""`python -m tests.simulation --seeds 20000`: run so many seeds, one after the other.

Prints each that fails, with what was violated and the fewest faults with which it is; the exit code
is 1 then. `--first` is where to begin. `--seed N` runs that one again, and tells what happened.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable

from tests.simulation.plan import plan_of
from tests.simulation.runs import described, run

_TOLD_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone, with all that went wrong in it")
    asked = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # which ranks start where
    if asked.seed is not None:
        return run_again(asked.seed)
    return run_all(range(asked.first, asked.first + asked.seeds))


def run_again(seed: int) -> int:
    plan = plan_of(seed)
    ran = run(plan)
    print(plan._replace(faults=()), *ran.story, *ran.wrong, sep="\n")
    print(*(f"{count:8} {what}" for what, count in sorted(ran.seen.items())), sep="\n")
    return 1 if ran.wrong else 0


def run_all(seeds: Iterable[int]) -> int:
    began = told = time.monotonic()
    count, failed = 0, []
    seen: Counter[str] = Counter()
    for seed in seeds:
        ran = run(plan_of(seed))
        count += 1
        seen += ran.seen
        if ran.wrong:
            failed.append(seed)
            print(described(plan_of(seed)), flush=True)
        if (now := time.monotonic()) - told > _TOLD_S:
            told = now
            print(f"{count} seeds, {count / (now - began):.1f}/s, failed: {failed}", flush=True)
    print(*(f"{number:8} {what}" for what, number in sorted(seen.items())), sep="\n")
    print(f"{count} seeds, {count / (time.monotonic() - began):.1f}/s, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
