"""The process that holds a job for `monarch-nb`: `python -m monarch_nb.control.jobs.kept.holder`.

It reads what is asked for from its standard input, and tells how far that is in JSON lines. Once
the hosts are there it listens in its private run dir, until it is told to end the job, by `kill` or
SIGTERM, or until all hosts have gone. The hosts end with it, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from monarch_nb.control.client import client
from monarch_nb.control.jobs.job import JobState, JobTrait
from monarch_nb.control.jobs.kept import wanted
from monarch_nb.control.jobs.kept.records import Record
from monarch_nb.control.jobs.kept.visitors import Visitors
from monarch_nb.control.jobs.status import JobStatus, Stage, stage_text
from monarch_nb.errors import MeshError
from monarch_nb.host.guard import started_at

_POLL_S: Final = 0.2
_LOOK_S: Final = 5.0
_COMING: Final = (Stage.QUEUED, Stage.JOINING)


def main() -> None:
    """Hold a job until its end. Exit code 1: it could not be had, which was said."""
    asked = json.loads(sys.stdin.readline())
    try:
        job = wanted.make(asked["spec"])
        with _ended(job):
            _hold(asked["name"], asked["spec"], job)
    except Exception as error:  # noqa: BLE001  a file of the user's runs here
        _tell(error=_words(error))
        raise SystemExit(1) from None


def _words(error: Exception) -> str:
    ours = (MeshError, OSError, RuntimeError, TypeError, ValueError)
    return str(error) if isinstance(error, ours) else f"{type(error).__name__}: {error}"


def _hold(name: str, spec: dict[str, Any], job: JobTrait) -> None:
    job.apply()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _follow(job)
    state = job.state(cached_path=None)
    for hosts in state.all_meshes().values():
        hosts.initialized.get()
    over = threading.Event()
    visitors = Visitors(job, state, over)
    record = _record(name, spec, job)
    record.write()
    try:
        _tell(up=_sizes(state))
        _say_no_more()
        while not (over.wait(_LOOK_S) or _is_gone(job)):
            continue
    finally:
        record.remove()
        job.kill()
        visitors.close()


@contextlib.contextmanager
def _ended(job: JobTrait) -> Iterator[None]:
    try:
        yield
    finally:
        job.kill()


def _follow(job: JobTrait) -> None:
    said = ""
    while (status := _status(job)) is not None and status.stage in (*_COMING, Stage.GONE):
        if status.stage is Stage.GONE:
            job.state(cached_path=None)  # raises with more words, if the engine has them
            raise RuntimeError(status.reason or "its hosts have gone")
        if (text := stage_text(status)) != said:
            said = text
            _tell(status=text)
        time.sleep(_POLL_S)


def _status(job: JobTrait) -> JobStatus | None:
    try:
        return job.status()
    except RuntimeError:
        return None


def _is_gone(job: JobTrait) -> bool:
    try:
        status = _status(job)
    except MeshError:  # its engine does not answer
        return False
    return status is not None and status.stage is Stage.GONE


def _sizes(state: JobState) -> dict[str, int]:
    return {name: len(hosts) for name, hosts in state.all_meshes().items()}


def _record(name: str, spec: dict[str, Any], job: JobTrait) -> Record:
    try:
        saved = json.loads(job.dumps())
    except TypeError:
        saved = None
    pid = os.getpid()
    run_dir = str(client().proc.links.run_dir)
    return Record(name, pid, started_at(pid) or 0, run_dir, wanted.words_of(spec), saved)


def _tell(**said: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def _say_no_more() -> None:
    # who has started it reads no further
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


if __name__ == "__main__":
    main()
