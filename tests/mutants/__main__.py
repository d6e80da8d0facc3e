"""`python -m tests.mutants [WORD ...]`: do each sabotage whose name has one of these words.

In a copy of the working tree, one after the other: a test has to fail that passes without it.
Prints a line for each, and in the end those that were not noticed; the exit code is 1 then.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.sabotage import Sabotage
from tests.mutants.sabotages import SABOTAGES
from tests.source import ROOT

LIMIT_S = 600
FAILED, PASSED = 1, 0
HANGS = "a test that hangs"  # it is ended, and pytest with it, which names nobody


def main(words: Sequence[str]) -> int:
    chosen = [each for each in SABOTAGES if not words or any(word in each.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        survivors = [each for each in chosen if not is_noticed(each, copy)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} sabotages were noticed")
    for each in survivors:
        print(f"not noticed: {each.name} ({each.file})")
    return 1 if survivors or not chosen else 0


def copy_tree(copy: Path) -> None:
    """Copy the working tree but for what git ignores, and the extension that was built."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
    built = (ROOT / "monarch_nb/labextension").rglob("*")
    names = [*map(os.fsdecode, listed.stdout.split(b"\0")[:-1]), *(str(each) for each in built)]
    for source in (ROOT / name for name in names):
        if source.is_file():
            target = copy / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def is_noticed(sabotage: Sabotage, copy: Path) -> bool:
    """Do one; tell whether a test fails with it that passes without it."""
    began = time.monotonic()
    with sabotaged(sabotage, copy):
        failed = first_failure(sabotage.tests.split(), copy)
    tests = sabotage.tests.split() if failed == HANGS else [failed or ""]
    is_its_own = failed is not None and first_failure(tests, copy) is None
    without = f"{failed} fails without it, too" if failed else "all tests pass"
    said = f"noticed by {failed}" if is_its_own else f"NOT NOTICED: {without}"
    print(f"{time.monotonic() - began:5.0f} s  {sabotage.name}: {said}", flush=True)
    return is_its_own


@contextmanager
def sabotaged(sabotage: Sabotage, copy: Path) -> Iterator[None]:
    file = copy / sabotage.file
    plain = file.read_text()
    file.write_text(plain.replace(sabotage.old, sabotage.new))
    try:
        yield
    finally:
        file.write_text(plain)


def first_failure(tests: Sequence[str], copy: Path) -> str | None:
    """Run tests until one fails; return that, as pytest names it, or None if all pass."""
    paths = os.pathsep.join([str(copy), str(copy / "kernel")])
    tier = "not nightly and not browser and not gpu"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", tier]
    try:
        ran = subprocess.run(
            [*command, "--timeout=120", "-o", "faulthandler_timeout=0", "-rfE", *tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return HANGS
    named = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", ran.stdout, re.MULTILINE)
    if ran.returncode == PASSED:
        return None
    if not named and ran.returncode != FAILED:
        raise RuntimeError(f"pytest did not run {tests}: {ran.stdout[-2_000:]}{ran.stderr}")
    return next(iter(named), HANGS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
