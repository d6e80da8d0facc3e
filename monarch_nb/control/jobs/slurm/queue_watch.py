"""Looks at the queue for all jobs of this program at once, and never more often than it may."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from typing import Final, Protocol

from monarch_nb.control.jobs.slurm.squeue import FORMAT, UNKNOWN, Facts, facts_of
from monarch_nb.control.jobs.slurm.submission import squeue_environment
from monarch_nb.host.launch import last_lines
from monarch_nb.net.threads import helper_thread

EVERY_S: Final = 2.0
_LIMIT_S: Final = 30.0
_INVALID: Final = "Invalid job id"
_log: Final = logging.getLogger(__name__)


class Watched(Protocol):
    """A job that is looked at until `look` returns None."""

    @property
    def id(self) -> str: ...

    def look(self, facts: Facts | None) -> float | None:
        """Take what the queue says, None: it does not answer. Return in how many seconds to look
        again."""


class QueueWatch:
    """One squeue for all jobs that are watched, at most every `EVERY_S`. It has a thread while
    there are any. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._looking = threading.RLock()
        self._due: dict[Watched, float] = {}
        self._last = -EVERY_S
        self._thread: threading.Thread | None = None
        self._is_mute = False

    def add(self, job: Watched) -> None:
        """Look at a job from now on."""
        with self._changed:
            self._due[job] = 0.0
            if self._thread is None:
                self._thread = helper_thread(self._run, "monarch-slurm")
                self._thread.start()
            self._changed.notify_all()

    def remove(self, job: Watched) -> None:
        """Look at it no more. Harmless when repeated."""
        with self._changed:
            self._due.pop(job, None)
            self._changed.notify_all()

    def hurry(self, job: Watched) -> None:
        """Look at a job as soon as one may."""
        with self._changed:
            if job in self._due:
                self._due[job] = 0.0
                self._changed.notify_all()

    def look_now(self) -> None:
        """Look in this thread, unless somebody has within `EVERY_S`."""
        with self._looking:
            if time.monotonic() - self._last >= EVERY_S:
                self._look()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._due and (pause := self._pause()) > 0:
                    self._changed.wait(pause)
                if not self._due:
                    self._thread = None
                    return
            self.look_now()

    def _pause(self) -> float:
        return max(min(self._due.values()), self._last + EVERY_S) - time.monotonic()

    def _look(self) -> None:
        with self._changed:
            watched = list(self._due)
        if not watched:
            return
        found = self._ask(sorted({each.id for each in watched}))
        self._last = time.monotonic()
        for each in watched:
            facts = None if found is None else found.get(each.id, Facts(each.id, UNKNOWN))
            again = each.look(facts)
            if again is None:
                self.remove(each)
            else:
                self._look_again(each, again)

    def _look_again(self, job: Watched, in_s: float) -> None:
        with self._changed:
            if job in self._due:
                self._due[job] = time.monotonic() + in_s

    def _ask(self, jobs: list[str]) -> dict[str, Facts] | None:
        command = ["squeue", "-h", "--states=all", "-j", ",".join(jobs), "-o", FORMAT]
        env = squeue_environment(os.environ)
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._mute(str(error))
            return None
        if done.returncode and _INVALID not in done.stderr:
            self._mute(last_lines(done.stderr))
            return None
        self._is_mute = False
        return facts_of(done.stdout)

    def _mute(self, why: str) -> None:
        if not self._is_mute:
            _log.warning("the queue of Slurm does not answer, it is asked again: %s", why)
        self._is_mute = True


queue: Final = QueueWatch()
"""That of this program."""
