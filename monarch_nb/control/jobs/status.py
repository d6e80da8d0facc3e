"""Where a job stands: queued, joining, up, ending, gone. It only moves forward."""

from __future__ import annotations

import enum
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
