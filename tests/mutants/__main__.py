"""`python -m tests.mutants [WORD ...]`: do each sabotage whose name has one of these words.

In a copy of the working tree, one after the other: the tests of a sabotage pass without it, and
fail with it. Prints a line for each; the exit code is 1 where one was not noticed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.sabotages import SABOTAGES, Sabotage
from tests.source import ROOT

LIMIT_S = 600
FAILED, PASSED = 1, 0


def main(words: Sequence[str]) -> int:
    chosen = [each for each in SABOTAGES if not words or any(word in each.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        survivors = [each for each in chosen if not is_noticed(each, copy)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} sabotages were noticed")
    return 1 if survivors else 0


def copy_tree(copy: Path) -> None:
    """Copy what git knows of the working tree, and the extension that was built."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    built = (ROOT / "monarch_nb/labextension").rglob("*")
    names = [*map(os.fsdecode, listed.stdout.split(b"\0")[:-1]), *(str(each) for each in built)]
    for source in (ROOT / name for name in names):
        if source.is_file():
            target = copy / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def is_noticed(sabotage: Sabotage, copy: Path) -> bool:
    """Do one; tell whether its tests pass without it and fail with it."""
    began = time.monotonic()
    before = ended(sabotage, copy)
    with done(sabotage, copy):
        code = ended(sabotage, copy) if before == PASSED else before
    took_s = time.monotonic() - began
    is_good = (before, code) == (PASSED, FAILED)
    said = "noticed" if is_good else f"NOT NOTICED (pytest: {before}, then {code})"
    print(f"{took_s:5.0f} s  {said}: {sabotage.name}", flush=True)
    return is_good


@contextmanager
def done(sabotage: Sabotage, copy: Path) -> Iterator[None]:
    file = copy / sabotage.file
    plain = file.read_text()
    file.write_text(plain.replace(sabotage.old, sabotage.new))
    try:
        yield
    finally:
        file.write_text(plain)


def ended(sabotage: Sabotage, copy: Path) -> int:
    """Run the tests of a sabotage until one fails; return pytest's exit code."""
    paths = os.pathsep.join([str(copy), str(copy / "kernel")])
    tier = "not nightly and not browser and not gpu"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", tier]
    try:
        return subprocess.run(
            [*command, *sabotage.tests.split()],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:  # what hangs is noticed
        return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
