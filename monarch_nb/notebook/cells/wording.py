"""What a person reads about how ranks ended a cell, or have not ended it yet. Words only.

Rule of the file: who it is, what happened, and what to type next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import (
    MAX_MESSAGES,
    ErrorGroup,
    fold_errors,
    rank_list,
    rank_runs,
    rank_words,
)
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.text.units import are
from monarch_nb.notebook import tracebacks

_STAYS: Final = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "launch failure",
    "uncorrectable ECC",
)


_NUMBER: Final = re.compile(r"In\[(\d+)\]")


def cell_number(what: str) -> int:
    """Return the number of a cell that is called so, or 0."""
    match = _NUMBER.search(what)
    return int(match[1]) if match else 0


def summary(errors: Mapping[int, ErrorRecord]) -> str:
    return "; ".join(group.headline for group in fold_errors(errors))


def traceback(
    shell: InteractiveShell, errors: Mapping[int, ErrorRecord], total: int, *, in_full: bool = False
) -> str:
    """Return a traceback for each group of ranks that failed alike, on a mesh of `total`."""
    lookup = partial(tracebacks.line_of_cell, shell)
    label = partial(tracebacks.name_of_cell, shell)
    groups = fold_errors(errors)
    parts = []
    for group in groups:
        if not _was_raised(group.record):
            parts.append(_told(group, group.record.format(lookup, label)))
        elif _is_stop(group.record):
            parts.append("\n".join(_stopped(group, group.record.format(lookup, label))))
        else:
            parts.append("\n".join(group.format(lookup, label, total, in_full=in_full)))
    if not in_full and any(len(group.messages) > MAX_MESSAGES for group in groups):
        parts.append("%mesh errors shows all messages")
    return "\n\n".join(parts)


def next_step(errors: Mapping[int, ErrorRecord]) -> list[str]:
    """Return what can be typed after a failure, as lines; none where no rank keeps its frames."""
    kept = [
        rank
        for rank, record in errors.items()
        if _was_raised(record) and record.ename not in {"KeyboardInterrupt", "SyntaxError"}
    ]
    if not kept:
        return []
    lines = ["", f"%debug opens pdb where {rank_words(kept)} failed"]
    if broken := [rank for rank in kept if _has_lost_its_gpu(errors[rank])]:
        empty = "an empty namespace" if len(broken) == 1 else "empty namespaces"
        lines.append(
            f"{rank_words(broken)} cannot use the GPU any more; "
            f"%mesh restart {rank_list(broken)} starts again, with {empty}"
        )
    if any("Duplicate GPU" in errors[rank].evalue for rank in kept):
        lines.append(
            "NCCL wants a GPU for each rank: have each use its own, `device`; ranks that share one "
            "need init_process_group('gloo')"
        )
    return lines


def who_is_late(
    errors: Mapping[int, ErrorRecord], pending: Sequence[int], *, is_script: bool
) -> str:
    """Return a line on ranks that run on while others have failed; those of a script are ended."""
    failed = fold_errors(errors)[0].headline
    if is_script:
        verb, rest = _were(pending), "A script that fails on one rank is interrupted on all"
    else:
        verb = are(pending)
        rest = "The stop button interrupts them."
    return f"{rank_words(pending)} {verb} still running after {failed}. {rest}\n"


def which_are_lost(mesh: str, lost: Sequence[int], wanted: Sequence[int]) -> str:
    """Return why a cell cannot start."""
    return (
        f"{rank_words(lost)} of {mesh} {are(lost)} lost; %mesh status shows how. "
        f"{advice(lost, wanted)}"
    )


def advice(lost: Sequence[int], wanted: Sequence[int]) -> str:
    """Return what to type when ranks are lost."""
    living = sorted(set(wanted).difference(lost))
    others = f", or %%mesh {rank_runs(living)} for the others" if living else ""
    return f"Type: %mesh heal{others}"


def after_interrupt(pending: Sequence[int], where: Sequence[str]) -> str:
    """Return what the ranks did about the stop button; `where` are lines on those that go on."""
    if not pending:
        return "all ranks have stopped"
    return still_at_work("interrupted", pending, where)


def after_timeout(
    timeout_s: float, late: Sequence[int], pending: Sequence[int], where: Sequence[str]
) -> str:
    """Return that `late` had not ended in time, and were interrupted; `pending` go on."""
    told = f"{rank_words(late)} had not ended after {timeout_s:g} s and {_were(late)} interrupted"
    return still_at_work(told, pending, where) if pending else told


def still_at_work(told: str, pending: Sequence[int], where: Sequence[str]) -> str:
    """Return ranks that nothing has stopped so far, and what can be done."""
    lines = [f"{told}; {rank_words(pending)} {are(pending)} still at work"]
    lines += [f"  {line}" for line in where]
    them = "it" if len(pending) == 1 else "them"
    kill = f"%mesh interrupt --kill {rank_list(pending)}"
    lines.append(
        f"The next %%mesh waits for {them}. Stop again interrupts {them}; {kill} ends {them}"
    )
    return "\n".join(lines)


def _is_stop(record: ErrorRecord) -> bool:
    plain = record.ename == "KeyboardInterrupt" and not (record.evalue or record.notes)
    return plain and bool(record.visible) and not (record.cause or record.context)


def _stopped(group: ErrorGroup, lines: Sequence[str]) -> list[str]:
    # The frames only: that it was the stop button is said once, for all ranks
    return [f"{rank_words(group.ranks)} {_were(group.ranks)} interrupted at", *lines[1:-1]]


def _was_raised(record: ErrorRecord) -> bool:
    # By code of the user's; else it is a process that ended, or a script that cannot begin
    below = record.frames or record.place or record.cause or record.context
    return bool(below) and not record.died


def _has_lost_its_gpu(record: ErrorRecord) -> bool:
    # After some errors of a kernel, each later use of the GPU by the process fails with the same
    return "CUDA error: " in record.evalue and any(each in record.evalue for each in _STAYS)


def _told(group: ErrorGroup, lines: Sequence[str]) -> str:
    # What happened, in our own words; where, if Python crashed; what they had printed
    record = group.record
    frames = lines[1 : -len(record.headline.splitlines())] if record.visible else []
    told = []
    for ranks, text in group.messages:
        how, *printed = text.splitlines()
        told += [f"{rank_words(ranks)}: {how}{' at' if frames else ''}", *frames, *printed]
    return "\n".join(told)


def _were(ranks: Sequence[int]) -> str:
    return "was" if len(ranks) == 1 else "were"
