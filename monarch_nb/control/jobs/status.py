"""Where a job stands: queued, joining, up, ending, gone. It only moves forward."""

from __future__ import annotations

import enum
import time
from typing import NamedTuple


class Stage(enum.Enum):
    """The stages of a job, in the order in which it goes through them."""

    QUEUED = "queued"
    JOINING = "joining"
    UP = "up"
    ENDING = "ending"
    GONE = "gone"


class JobStatus(NamedTuple):
    """A job at one moment, as its engine tells. Times are seconds since the epoch, None: unknown.

    Example:
        >>> JobStatus("slurm", Stage.QUEUED, 0, 4, id="4711", reason="Priority").stage.value
        'queued'
    """

    engine: str
    """The word behind `--on`: slurm, ssh, k8s, ray, processes."""
    stage: Stage
    joined: int
    """How many of its hosts are here."""
    hosts: int
    """How many it asked for."""
    id: str = ""
    """As the engine names it."""
    reason: str = ""
    """Why it is queued or gone, in the words of the engine."""
    starts_at: float | None = None
    """When a queued one is expected to start."""
    ends_at: float | None = None
    """When its time is over."""


def stage_text(status: JobStatus) -> str:
    """Return `queued (Priority), starts ~14:05`, or `3/4 hosts (waiting for node2)`."""
    if status.stage.value in ("joining", "up"):
        return f"{status.joined}/{status.hosts} hosts{_reason(status)}"
    return told(status)


def told(status: JobStatus) -> str:
    """Return the same by the name of its stage alone: `gone (NODE_FAIL)`."""
    text = f"{status.stage.value}{_reason(status)}"
    if status.stage.value != "queued" or status.starts_at is None:
        return text
    return f"{text}, starts ~{clock(status.starts_at)}"


def _reason(status: JobStatus) -> str:
    first = status.reason.partition("\n")[0]
    return f" ({first})" if first else ""


def clock(at: float) -> str:
    """Return `14:05`, with the date if that is not today; `at` is in seconds since the epoch."""
    is_today = time.strftime("%x", time.localtime(at)) == time.strftime("%x")
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", time.localtime(at))
