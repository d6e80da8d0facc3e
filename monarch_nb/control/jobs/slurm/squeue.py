"""What squeue and the output of a job say, and what it means to people.

Pure. Lines are read, never Slurm's JSON, whose fields change with its versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from monarch_nb.control.jobs.status import Stage
from monarch_nb.host.launch import last_lines

FORMAT: Final = "%i|%T|%S|%e|%l|%r"  # the reason last: it may hold anything
TIME_FORMAT: Final = "%s"  # for SLURM_TIME_FORMAT: seconds since the epoch, in no time zone
UNKNOWN: Final = "UNKNOWN"
_QUEUED: Final = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_STARTED: Final = {"CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "STOPPED", "SUSPENDED"}
_ENDING: Final = {"COMPLETING", "STAGE_OUT"}
_CANCELLED: Final = " CANCELLED AT "
_NONE: Final = {"", "None"}
_WHY_OVER: Final = {
    "BOOT_FAIL": "a node could not be booted",
    "CANCELLED": "it was cancelled",
    "COMPLETED": "its hosts have ended",
    "DEADLINE": "its deadline is over",
    "FAILED": "it failed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "it took more memory than it has",
    "PREEMPTED": "another job has preempted it",
    "REVOKED": "it was revoked",
    UNKNOWN: "Slurm does not know it any more",
}
_ADVICE: Final = (
    ("No module named", "Install monarch_nb in that Python, or name one: SlurmJob(python_exe=...)"),
    ("execve", "Name a Python that all nodes have: SlurmJob(python_exe=...)"),
    (" not found", "Name a Python that all nodes have: SlurmJob(python_exe=...)"),
    ("nvalid partition", "See the partitions: sinfo --summarize"),
    ("nvalid account", "See yours: sacctmgr show associations user=$USER format=account,qos"),
    ("nvalid qos", "See yours: sacctmgr show associations user=$USER format=account,qos"),
    ("time limit", "See the limits: sinfo -o '%P %l'"),
    ("node configuration is not available", "See the nodes: sinfo -N -o '%N %P %c %m %G'"),
    ("Unable to contact slurm controller", "Ask whether it runs: scontrol ping"),
    ("nodes are busy", "See what runs there: squeue --steps"),
    ("answered within", "Name an address that nodes reach: SlurmJob(bind_to='tcp://HOST:PORT')"),
)
_REASONS: Final = {
    "PartitionConfig": "the partition has too few nodes, or not such ones",
    "PartitionNodeLimit": "the partition allows fewer nodes for a job",
    "PartitionTimeLimit": "the partition allows less time for a job",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are drained, down or reserved",
    "BadConstraints": "no node has what was asked for",
    "JobHeldUser": "it is held: scontrol release JOB",
    "JobHeldAdmin": "an administrator holds it",
    "AccountNotAllowed": "the partition does not allow this account",
    "QOSNotAllowed": "this qos is not allowed here",
    "InvalidAccount": "the account is not known",
    "InvalidQOS": "the qos is not known",
}
_TASK_ENDED: Final = re.compile(r"^srun: error: \S+: tasks? ([\d,-]+): (.+)$", re.MULTILINE)
_TASKS: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_LAST_TASK: Final = 100_000  # a rank may print such a line, too, and that must not fill the memory


class Facts(NamedTuple):
    """A job as squeue shows it. Times in seconds since the epoch; None: Slurm does not know."""

    id: str
    state: str
    reason: str = ""
    starts_at: float | None = None
    ends_at: float | None = None
    limit: str = ""


def facts_of(output: str) -> dict[str, Facts]:
    """Read what `squeue -h -o FORMAT` prints, by the ids of jobs; a line that is none is skipped.

    Example:
        >>> facts_of("12|PENDING|N/A|N/A|1:00|Priority")["12"].reason
        'Priority'
    """
    found = {}
    for line in output.splitlines():
        parts = line.split("|", 5)
        if len(parts) == 6:
            job, state, starts, ends, limit, reason = parts
            why = "" if reason in _NONE else reason
            found[job] = Facts(job, state, why, _time(starts), _time(ends), _duration(limit))
    return found


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _duration(text: str) -> str:
    # as `scontrol` writes it: an hour and a minute are told apart
    if not re.fullmatch(r"\d+(:\d\d){1,2}", text):
        return text
    parts = text.split(":")
    return ":".join(each.zfill(2) for each in [*["00"] * (3 - len(parts)), *parts])


def stage_of(facts: Facts, *, all_joined: bool) -> Stage:
    """Return where a job stands."""
    if facts.state in _QUEUED:
        return Stage.QUEUED
    if facts.state in _STARTED:
        return Stage.UP if all_joined else Stage.JOINING
    return Stage.ENDING if facts.state in _ENDING else Stage.GONE


def why_over(facts: Facts, output: str = "") -> str:
    """Say why a job ends or has ended, of which this is the output; "" where nothing tells.

    Example:
        >>> why_over(Facts("12", "TIMEOUT", limit="00:01:00"))
        'its time limit of 00:01:00 is over'
    """
    if facts.state == "TIMEOUT" or facts.reason == "TimeLimit":
        return f"its time limit of {facts.limit} is over"
    if facts.state in _ENDING:
        if facts.reason:
            return f"it ends ({facts.reason})"
        return "it was cancelled" if _CANCELLED in output else "it was cancelled, or has ended"
    said = _WHY_OVER.get(facts.state, "")
    return f"{said} ({facts.reason})" if said and facts.reason else said


def why_queued(reason: str) -> str:
    """Return a reason of Slurm's, with what it means where that is not plain.

    Example:
        >>> why_queued("PartitionConfig")
        'PartitionConfig: the partition has too few nodes, or not such ones'
    """
    code = reason.partition(",")[0]
    meaning = _REASONS.get(code)
    if meaning is None and code.startswith(("QOS", "Assoc")):
        meaning = "a limit of your qos or account is reached"
    return f"{reason}: {meaning}" if meaning else reason


def advice(words: str) -> str:
    """Return what to type about a job with these last words; "" where they say enough."""
    return next((said for sign, said in _ADVICE if sign in words), "")


def ended_tasks(output: str) -> dict[int, str]:
    """Return the tasks that have ended in a bad way, each with what srun says of that.

    Example:
        >>> ended_tasks("srun: error: node[1-2]: tasks 0-1: Exited with exit code 3")
        {0: 'Exited with exit code 3', 1: 'Exited with exit code 3'}
    """
    found = _TASK_ENDED.findall(output)
    return {task: how for tasks, how in found for task in _numbers(tasks)}


def _numbers(text: str) -> Iterator[int]:
    for match in _TASKS.finditer(text):
        first, last = int(match[1]), int(match[2] or match[1])
        yield from range(first, min(last, _LAST_TASK) + 1)


def words_of(output: str, task: int) -> str:
    """Return the last lines that a task has written, without the label of srun."""
    label = re.compile(rf"^ *{task}: (.*)$", re.MULTILINE)
    return last_lines("\n".join(label.findall(output)))
