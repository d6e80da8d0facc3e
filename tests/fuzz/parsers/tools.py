"""What other programs print: squeue and srun, py-spy, faulthandler."""

from monarch_nb.control.jobs.slurm import squeue
from monarch_nb.core.hangs import native_stacks, stacks

MOST_TASKS = 100_001


def squeue_lines(data: bytes) -> bool:
    """Any output of squeue is facts of jobs; nothing is raised."""
    found = squeue.facts_of(_text(data))
    for facts in found.values():
        squeue.stage_of(facts, all_joined=False)
        squeue.why_over(facts, "")
        squeue.why_queued(facts.reason)
    return bool(found)


def srun_lines(data: bytes) -> bool:
    """Any output of srun says how tasks have ended, of a hundred thousand at most."""
    found = squeue.ended_tasks(_text(data))
    assert len(found) <= MOST_TASKS
    return bool(found)


def python_stacks(data: bytes) -> bool:
    """Any text of faulthandler's is threads with frames; nothing is raised."""
    text = _text(data)
    found = stacks.threads(text)
    assert len(stacks.of_user(text)) <= len(found)
    return any(found)


def c_stacks(data: bytes) -> bool:
    """Any output of py-spy is refused with ValueError, or is stacks of threads."""
    try:
        found = native_stacks.read(_text(data))
    except ValueError:
        return False
    return bool(found)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
