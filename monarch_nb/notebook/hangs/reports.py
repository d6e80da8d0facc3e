"""Why ranks hang, in words: who waits in which collective, and where the others are.

Rule of the file: what comes from below is plain data; here it becomes sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import fold_outputs, rank_list, rank_words
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.hangs.collectives import Standing, disagreement, line, pending
from monarch_nb.notebook.display.units import count
from monarch_nb.notebook.hangs import whereabouts
from monarch_nb.notebook.source import tracebacks

if TYPE_CHECKING:
    from monarch_nb.control.api import Regrouped, Seen
    from monarch_nb.core.hangs.stack_tree import Stack

ADVICE: Final = "The stop button ends the wait; then type %mesh regroup"
_NO_ANSWER: Final = "not answering"
_WHYS: Final = {
    "no process group": "no process group",
    "off": "nothing is recorded: TORCH_FR_BUFFER_SIZE is 0",
    None: "no answer; %mesh stacks shows where it is",
}
_CLOSED: Final = "pair closure"  # what gloo says where a wait in C++ was ended
_WAITS: Final = "monarch_nb/worker/groups/collectives.py"


def standings(shell: InteractiveShell, seen: Mapping[int, Seen]) -> dict[int, Standing]:
    """Where these ranks are, with words for the places of those that do not wait."""
    return {rank: one.standing._replace(place=_place(shell, one)) for rank, one in seen.items()}


def telling_line(shell: InteractiveShell, meshes: Mapping[str, Mapping[int, Seen]]) -> str:
    """`ranks 0-2 in all_reduce #18 for 6 s; rank 3 in data.py:41 load()`, of each mesh."""
    told = {name: line(standings(shell, seen)) for name, seen in meshes.items()}
    return "; ".join(f"{name}: {text}" if len(told) > 1 else text for name, text in told.items())


def report(shell: InteractiveShell, seen: Mapping[int, Seen], last: int) -> str:
    """The last collectives of these ranks, equal ones once, below what they disagree about."""
    found = standings(shell, seen)
    parts = []
    if told := disagreement(found):
        parts += [told, ADVICE, ""]
    elif any(each.waits_in for each in found.values()):
        parts += [line(found), ""]
    recorded = {rank: _recorded(found[rank], one.why, last) for rank, one in seen.items()}
    groups = fold_outputs(recorded)
    width = max((len(rank_words(group.ranks)) for group in groups), default=0)
    for group in groups:
        label = rank_words(group.ranks)
        for row in recorded[group.ranks[0]]:
            parts.append(f"{label:{width}}  {row}")
            label = ""
    return "\n".join(parts)


def who_left(errors: Mapping[int, ErrorRecord]) -> str:
    """What ranks that were stopped in a collective need; empty where none was."""
    ranks = [rank for rank, error in errors.items() if _was_in_collective(error)]
    if not ranks:
        return ""
    its, has = ("its", "has") if len(ranks) == 1 else ("their", "have")
    return (
        f"{rank_words(ranks)} {has} left a collective before it had ended: {its} process group "
        "cannot be used any more. Type: %mesh regroup"
    )


def who_is_stuck(stacks: Mapping[int, Sequence[Stack]]) -> list[str]:
    """A line on ranks that no interrupt can free: they wait in C++ code of PyTorch."""
    ranks = [rank for rank, found in stacks.items() if whereabouts.is_in_torch(found)]
    if not ranks:
        return []
    are, namespaces = ("is", "an empty namespace")
    if len(ranks) > 1:
        are, namespaces = ("are", "empty namespaces")
    told = f"{rank_words(ranks)} {are} in C++ code of PyTorch, which an interrupt may not end"
    return [f"{told}; %mesh restart {rank_list(ranks)} starts again, with {namespaces}"]


def regrouped(name: str, done: Regrouped) -> str:
    """What became of the process groups of a mesh."""
    dropped = ""
    if done.dropped:
        are = "is" if done.dropped == 1 else "are"
        dropped = f" {count(done.dropped, 'other group')} {are} gone: make them with new_group."
    if not done.backend:
        return f"{name}: ready for a new init_process_group().{dropped}"
    return (
        f"{name}: all ranks are in a new process group ({done.backend}).{dropped} "
        "What holds the old one (DDP, DeviceMesh) has to be made again"
    )


def _place(shell: InteractiveShell, one: Seen) -> str:
    if one.paused_at:
        return f"paused at {tracebacks.named_place(shell, one.paused_at)}"
    if one.stacks is None:
        return _NO_ANSWER
    place = whereabouts.short(shell, one.stacks)
    return place if place == whereabouts.IDLE else f"in {place}"


def _recorded(standing: Standing, why: str | None, last: int) -> tuple[str, ...]:
    waiting = pending(standing.entries) if standing.waits_in else None
    rows = [
        f"{entry.text}{', waiting' if entry == waiting else ''}"
        for entry in standing.entries[-last:]
    ]
    if standing.waits_in and waiting is None:
        rows.append(f"{standing.waits_in}, waiting")
    return tuple(rows) or (_WHYS.get(why, "no collective yet"),)


def _was_in_collective(error: ErrorRecord) -> bool:
    is_stop = error.ename == "KeyboardInterrupt"
    was_ended = error.context is not None and _CLOSED in error.context.evalue
    return is_stop and (was_ended or any(each.filename.endswith(_WAITS) for each in error.frames))
