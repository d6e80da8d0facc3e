"""The hosts of one job of Slurm, from the ticket to the end: who has joined, and what was said."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from monarch_nb.control.client import Client
from monarch_nb.control.jobs.slurm.folder import JobFolder
from monarch_nb.control.jobs.slurm.queue_watch import EVERY_S, queue
from monarch_nb.control.jobs.slurm.squeue import (
    Facts,
    advice,
    ended_tasks,
    stage_of,
    why_over,
    why_queued,
    words_of,
)
from monarch_nb.control.jobs.slurm.submission import Keeper, Staying, give_back_others
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host.launch import last_lines
from monarch_nb.net import wire
from monarch_nb.process.futures.future import Future, make

_WHEN_UP_S: Final = 30.0
_WARN_S: Final = 300.0
_ENDED: Final = "the job was ended"
_log: Final = logging.getLogger(__name__)


class TimeOver(NamedTuple):
    """Call back when a job has so many seconds left."""

    left_s: float
    callback: Callable[[], object]


class Launched(NamedTuple):
    """A job of Slurm. `is_step`: its hosts are a step of it, in an allocation that stays."""

    id: str
    is_step: bool


class Allocation:
    """Follows a job, and tells those who wait for its hosts what has become of it.

    What has to be read or asked is done by the thread of the queue; hosts come in that of the
    inbox.
    """

    def __init__(self, controller: Client, hosts: Sequence[int], folder: JobFolder) -> None:
        self.hosts = list(hosts)
        self._controller = controller
        self._folder = folder
        self._keeper: Keeper | Staying | None = None
        self._launched: Launched | None = None
        self._lock = threading.Lock()
        self._missing = set(range(len(hosts)))
        self._failed: set[int] = set()  # of the missing: they will never come
        self._unwanted: set[int] = set()
        self._settled: Future[None] = make(Future)  # all are here, or one will never be
        self._facts: Facts | None = None
        self._over: str | None = None  # why
        self._said = ""
        self._is_whole = True  # no host was lost
        self._lost: list[tuple[int, str, Callable[[str], None]]] = []
        self._warnings: list[TimeOver] = [TimeOver(_WARN_S, self._warn)]
        for index, host in enumerate(hosts):
            ready = controller.hosts_ready([wire.agent_id(host)])
            ready.add_done_callback(functools.partial(self._came, index))

    def own(self, keeper: Keeper | Staying) -> None:
        """Have what gives the hosts back, whatever becomes of the job."""
        self._keeper = keeper

    def begin(self, launched: Launched, hooks: Sequence[TimeOver]) -> None:
        """Follow this job."""
        self._launched = launched
        self._warnings.extend(hooks)
        queue.add(self)

    @property
    def id(self) -> str:
        return "" if self._launched is None else self._launched.id

    def status(self) -> JobStatus:
        """Return where it stands; the queue is asked, unless that was just now."""
        if self._over is None:
            queue.look_now()
        facts, is_waited_for = self._facts, bool(self._missing - self._failed)
        joined = self._controller.hosts_here(self.hosts)
        place = functools.partial(JobStatus, "slurm", joined=joined, hosts=len(self.hosts))
        if self._over is not None:
            return place(stage=Stage.GONE, id=self.id, reason=self._over)
        stage = Stage.QUEUED if facts is None else stage_of(facts, all_joined=not is_waited_for)
        if stage is Stage.QUEUED and joined:  # since the queue was asked
            stage = Stage.JOINING if is_waited_for else Stage.UP
        if facts is None:
            return place(stage=stage, id=self.id)
        is_queued, is_ending = stage is Stage.QUEUED, stage is Stage.ENDING
        reason = why_over(facts, self._folder.output()) if is_ending else facts.reason
        return place(
            stage=stage,
            id=self.id,
            reason=reason,
            starts_at=facts.starts_at if is_queued else None,
            ends_at=None if is_queued else facts.ends_at,
        )

    def wait(self, limit_s: float | None) -> None:
        """Wait until all hosts are here.

        Raises `LaunchError` where one will never be, or not all are within `limit_s`.
        """
        try:
            self._settled.get(limit_s)
        except TimeoutError:
            status = self.status()
            why = f"{status.stage.value} {why_queued(status.reason)}".strip()
            raise LaunchError(
                f"{self} has {status.joined} of {status.hosts} hosts after {limit_s:g} s: {why}"
            ) from None

    def end(self, limit_s: float) -> None:
        """Give the hosts back. Harmless when repeated."""
        self._finish(_ENDED, _ENDED)
        if self._keeper is not None:
            self._keeper.release(limit_s)
        self._folder.remove_ticket()
        if self._over == _ENDED and self._is_whole and not self._missing:  # nothing went wrong
            self._folder.remove_output()

    def close(self, limit_s: float) -> None:
        """Give the hosts back at the end of this program, unless they stay."""
        if isinstance(self._keeper, Staying):
            queue.remove(self)
        else:
            self.end(limit_s)

    def let_stay(self) -> None:
        """Leave the hosts where they are when this program ends. Harmless when repeated."""
        assert self._launched is not None
        if isinstance(self._keeper, Keeper):
            job, is_step = self._launched
            self._keeper = Staying(job, self._keeper.let_stay(), is_step=is_step)

    def to_json(self) -> list[Any]:
        """Return what `found` takes in another program, of hosts that stay; before that, what will
        do there once they do."""
        assert self._launched is not None
        job, is_step = self._launched
        shell = self._keeper.shell if isinstance(self._keeper, Staying) else (0, 0)
        return [self.hosts, self._folder.token, job, shell, is_step]

    def give_up(self) -> None:
        """Wait no more for hosts that are not here."""
        self._finish(_ENDED, _ENDED)

    def node_of(self, host: int) -> str | None:
        """Return the node on which a host is, or was; None for one that has never come."""
        name = self._controller.host_name(host)
        return None if name is None else name.partition(".")[0]

    def let_go(self, hosts: Collection[int]) -> bool:
        """Want these hosts no more, and give their nodes back, but those of an allocation that
        stays; whether none is wanted now."""
        gone = {index for index, host in enumerate(self.hosts) if host in hosts}
        self._unwanted |= gone
        kept = [host for index, host in enumerate(self.hosts) if index not in self._unwanted]
        nodes = sorted({node for host in kept if (node := self.node_of(host)) is not None})
        if gone and nodes and self._launched is not None and not self._launched.is_step:
            give_back_others(self.id, nodes)
        return not kept

    def explain(self, host: int, why: str, tell: Callable[[str], None]) -> None:
        """Tell why a host was lost, as soon as the queue was asked. Any thread."""
        with self._lock:
            is_followed = self._over is None
            if is_followed:
                self._is_whole = False
                self._lost.append((self.hosts.index(host), why, tell))
        if is_followed:
            queue.hurry(self)
        else:
            tell(f"{why}: {self._over}")

    # the inbox thread

    def _came(self, index: int, ready: Future[bool]) -> None:
        if (error := ready.exception()) is not None:
            self._failed.add(index)
            self._settled._set_exception(LaunchError(str(error)))
            return
        self._missing.discard(index)
        if not self._missing:
            self._settled._set_result(None)
            queue.hurry(self)

    # the thread of the queue

    def look(self, facts: Facts | None) -> float | None:
        """Take what the queue says; see `Watched`."""
        if self._over is not None:
            return None
        if facts is not None:
            self._facts = facts
            self._say(facts)
        if self._is_over():
            self._gone()
            return None
        if self._missing - self._failed:
            self._give_up_ended()
        else:
            self._folder.remove_ticket()
        self._tell_of_lost()
        return self._when_again()

    def _is_over(self) -> bool:
        assert self._launched is not None
        assert self._keeper is not None
        if self._launched.is_step and self._keeper.has_ended:
            return True
        return self._facts is not None and stage_of(self._facts, all_joined=True) is Stage.GONE

    def _say(self, facts: Facts) -> None:
        # to who waits: the first reason that is not about to pass by itself, and each new one
        if facts.reason and facts.reason != self._said and not self._settled.done():
            self._said = facts.reason
            if stage_of(facts, all_joined=False) is Stage.QUEUED:
                _log.warning("%s is queued: %s", self, why_queued(facts.reason))

    def _gone(self) -> None:
        assert self._keeper is not None
        output = self._folder.output()
        facts = self._ending()
        why = "srun has ended" if facts is None else why_over(facts, output)
        words = last_lines(output)
        lines = [f"{self}: {why}", words, self._folder.where_output(), advice(words)]
        text = "\n".join(filter(None, lines))
        self._settled._set_exception(LaunchError(text))
        self._finish(why, text)
        self._keeper.release(0)
        self._folder.remove_ticket()

    def _finish(self, why: str, text: str) -> None:
        with self._lock:
            if self._over is not None:
                return
            self._over = why
            lost, self._lost = self._lost, []
        queue.remove(self)
        for index in sorted(self._missing):
            self._controller.give_up_host(self.hosts[index], text)
        for _, how, tell in lost:
            tell(f"{how}: {why}")

    def _give_up_ended(self) -> None:
        output = self._folder.output()
        for index, how in ended_tasks(output).items():
            if index in self._missing - self._failed:
                words = words_of(output, index)
                lines = [how, words, self._folder.where_output(), advice(words or output)]
                self._controller.give_up_host(self.hosts[index], "\n".join(filter(None, lines)))

    def _tell_of_lost(self) -> None:
        with self._lock:
            lost, self._lost = self._lost, []
        if not lost:
            return
        output = self._folder.output()
        ended, facts = ended_tasks(output), self._ending()
        for index, how, tell in lost:
            why = ended.get(index, "") if facts is None else why_over(facts, output)
            tell(f"{how}: {why}" if why else how)

    def _ending(self) -> Facts | None:
        # of a job that ends or has ended
        facts = self._facts
        if facts is None or stage_of(facts, all_joined=True) not in (Stage.ENDING, Stage.GONE):
            return None
        return facts

    # time

    def _when_again(self) -> float:
        facts = self._facts
        all_joined = not self._missing - self._failed
        if facts is None or stage_of(facts, all_joined=all_joined) is not Stage.UP:
            return EVERY_S
        if facts.ends_at is None:
            return _WHEN_UP_S
        left_s = facts.ends_at - time.time()
        for each in [each for each in self._warnings if left_s <= each.left_s]:
            self._warnings.remove(each)
            self._call(each.callback)
        return min([_WHEN_UP_S, *(left_s - each.left_s for each in self._warnings)])

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:  # noqa: BLE001  the user's; the queue is looked at for other jobs too
            _log.exception("%s: %r has failed, which was to be called", self, callback)

    def _warn(self) -> None:
        if self._facts is not None and self._facts.ends_at is not None:
            at = time.strftime("%H:%M", time.localtime(self._facts.ends_at))
            _log.warning("%s: its time limit of %s is over at %s", self, self._facts.limit, at)

    def __str__(self) -> str:
        return f"Slurm job {self.id}"
