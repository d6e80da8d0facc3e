"""Runs one measure of one system in a process of its own, with a deadline, and leaves nothing.

Whatever the process starts inherits a mark in its environment; after each measure everything that
still carries it is ended by process id, and counted.
"""

import json
import os
import select
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.processes import MARK, end_all, marked, wait_gone
from benchmarks.timing import now

ROOT = Path(__file__).parent.parent
LOG_CHARACTERS = 4_000
EXIT_S = 15.0  # to end by itself once the figures are out

Answer = dict[str, dict[str, dict[str, Any]]]  # "results" -> measure -> "figures" or "error"

_VERSIONS = """
import importlib.metadata as m, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Outcome:
    figures: Mapping[str, float | str] = field(default_factory=dict)
    error: str | None = None
    left: int = 0  # processes that had to be ended
    log: str = ""  # the end of what it said, where there is an error: the stacks of one that hung


def versions(python: str, distributions: list[str]) -> dict[str, str]:
    """What of `distributions` the interpreter `python` has. Nothing if it cannot be started."""
    try:
        done = subprocess.run(
            [python, "-c", _VERSIONS, *distributions], capture_output=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, str] = json.loads(done.stdout)
    return found


def run(python: str, module: str, measure: str, deadline_s: float, quick: bool = False) -> Outcome:
    command = [python, "-m", f"benchmarks.systems.{module}", "--json", measure]
    command += ["--deadline", str(deadline_s)]
    with _workplace() as (mark, folder), (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            [*command, "--quick"] if quick else command,
            cwd=ROOT,
            env=_environment(python, mark, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        answer: Answer | str | None = None
        try:
            answer = _answer(process, deadline_s)
            _let_exit(process, mark)
        except TimeoutError as late:
            answer = str(late)
        finally:
            left = end_all(mark)
            process.kill()
            process.wait()
        return _outcome(answer, measure, process.returncode, log, left)


def _outcome(
    answer: Answer | str | None, measure: str, returncode: int, log: IO[bytes], left: int
) -> Outcome:
    if not isinstance(answer, dict):
        return Outcome(error=answer or _last_line(log, returncode), left=left, log=_said(log))
    result = answer["results"][measure]
    error = None if "figures" in result else str(result["error"])
    return Outcome(result.get("figures", {}), error, left, _said(log) if error else "")


def _answer(process: subprocess.Popen[bytes], deadline_s: float) -> Answer | None:
    """The JSON line that the process prints; None if it ends without one."""
    assert process.stdout
    out = process.stdout.fileno()
    poll = select.poll()
    poll.register(out, select.POLLIN | select.POLLHUP)
    end = now() + deadline_s
    text = b""
    while (wait_s := end - now()) > 0 and poll.poll(wait_s * 1000):
        chunk = os.read(out, 65536)
        if not chunk:
            return None
        text += chunk
        for line in text.splitlines(keepends=True):
            if line.startswith(b'{"results"') and line.endswith(b"\n"):
                found: Answer = json.loads(line)
                return found
    raise TimeoutError(f"not within {deadline_s:g} s")


def _let_exit(process: subprocess.Popen[bytes], mark: str) -> None:
    end = now() + EXIT_S
    try:
        process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        return
    wait_gone(marked(mark), min(5.0, end - now()))


@contextmanager
def _workplace() -> Iterator[tuple[str, Path]]:
    # A short path: sockets live below it, and theirs may have 107 characters.
    with tempfile.TemporaryDirectory(
        prefix="bench-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        yield uuid.uuid4().hex, Path(folder)


def _environment(python: str, mark: str, folder: Path) -> dict[str, str]:
    return os.environ | {
        MARK: mark,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # what is installed has been compiled
        # nbdistributed starts its workers as "python"
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(folder),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _said(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-LOG_CHARACTERS:]


def _last_line(log: IO[bytes], returncode: int) -> str:
    told = [line.strip() for line in _said(log).splitlines() if line.strip()]
    return f"ended with code {returncode}{': ' + told[-1] if told else ''}"
