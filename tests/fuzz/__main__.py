"""`python -m tests.fuzz [--seconds 60] [TARGET,...]`: each target in a process of its own, guided
by coverage where atheris is installed. What breaks one is kept in its corpus, as a regression.

Only modules of `monarch_nb` are instrumented. Without atheris inputs come from hypothesis.
"""

import argparse
import hashlib
import importlib.util
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 4096  # of an input
SLOWEST_S = 10  # of one execution
MOST_MB = 2048  # of memory
CHILD = "--child"


class Outcome(NamedTuple):
    """How the run of a target has ended, with this exit code; `kept`: files that break it; `said`:
    the last words."""

    seconds: float
    executions: int
    kept: list[str]
    code: int
    said: str


def main(words: list[str]) -> int:
    """Run targets, and print a table. 1 where one was broken."""
    if words[:1] == [CHILD]:
        return _child(words[1], int(words[2]))
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="make fuzz", description="Fuzz what parses.")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("targets", nargs="*", help="their names; all of them if none")
    chosen = parser.parse_args(words)
    names = [name for each in chosen.targets for name in each.split(",")] or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    if not _has_atheris():
        print("atheris is not here for this Python: inputs come from hypothesis, unguided.")
    print(f"{'target':22}{'seconds':>8}{'executions':>12}  result")
    outcomes = [_run(name, chosen.seconds) for name in names]
    broken = [name for name, each in zip(names, outcomes, strict=True) if each.code]
    if broken:
        print(f"broken: {', '.join(broken)}. Run what was kept: pytest tests/fuzz -k corpus")
    return int(bool(broken))


def _run(name: str, seconds: int) -> Outcome:
    from tests.fuzz.targets import seeds

    before = set(seeds(name))
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz", CHILD, name, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    kept = [path.name for path in seeds(name) if path not in before]
    found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    outcome = Outcome(
        time.monotonic() - began,
        int(found[1]) if found else 0,
        kept,
        done.returncode,
        "\n".join(done.stderr.splitlines()[-40:]),
    )
    why = ", ".join(kept) or f"no input: it ended with {done.returncode}"
    result = f"BROKEN by {why}" if outcome.code else "ok"
    print(f"{name:22}{outcome.seconds:8.0f}{outcome.executions:12}  {result}", flush=True)
    if outcome.code:
        print(outcome.said, file=sys.stderr, flush=True)
    return outcome


def _has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def _child(name: str, seconds: int) -> int:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = None
        if _has_atheris():
            _guided(name, seconds, Path(folder))
        return _unguided(name, seconds)


def _guided(name: str, seconds: int, found: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["monarch_nb"], enable_loader_override=False):
        from tests.fuzz.targets import CORPUS, TARGETS

    corpus = CORPUS / name
    options = [
        f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", f"-timeout={SLOWEST_S}",
        f"-rss_limit_mb={MOST_MB}", f"-artifact_prefix={corpus}/", "-print_final_stats=1",
    ]  # fmt: skip
    (found / "new").mkdir()
    atheris.Setup([name, *options, str(found / "new"), str(corpus)], _guarded(TARGETS[name]))
    atheris.Fuzz()  # ends the process


def _unguided(name: str, seconds: int) -> int:
    from hypothesis import HealthCheck, Phase, given, settings

    from tests.fuzz.mutations import inputs
    from tests.fuzz.targets import CORPUS, TARGETS, seeds

    target = _guarded(TARGETS[name])
    count = 0

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        try:
            target(data)
        except Exception:
            last[0] = data
            raise

    last = [b""]
    rounds = settings(
        max_examples=500, database=None, deadline=None, derandomize=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    trial = rounds(given(inputs([path.read_bytes() for path in seeds(name)]))(one))
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            trial()
    except Exception:
        digest = hashlib.sha1(last[0], usedforsecurity=False).hexdigest()
        (CORPUS / name / f"crash-{digest}").write_bytes(last[0])
        raise
    finally:
        print(f"number_of_executed_units: {count}", file=sys.stderr)
    return 0


def _guarded(target: Callable[[bytes], bool]) -> Callable[[bytes], None]:
    # reaching `loads` is a finding too
    def unpickle(*_: object, **__: object) -> None:
        raise AssertionError("bytes that came from outside were to be unpickled")

    pickle.loads = unpickle

    def run(data: bytes) -> None:
        try:
            target(data)
        except BaseException:
            # the alarm for slow inputs would kill a Python that is ending, before this one is kept
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise

    return run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
