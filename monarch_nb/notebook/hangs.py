"""Where ranks are in their code, and why they hang, in words; or all their calls as a tree.

Rule of the file: what comes from below is plain data; here it becomes sentences.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import fold_outputs, rank_list, rank_words
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.hangs.collectives import Standing, disagreement, pending
from monarch_nb.core.hangs.collectives import line as line_of
from monarch_nb.core.hangs.stack_tree import Line, Node, Stack
from monarch_nb.core.hangs.stack_tree import lines as lines_of
from monarch_nb.core.hangs.stacks import Frame
from monarch_nb.core.text.units import are, count
from monarch_nb.notebook import tracebacks
from monarch_nb.notebook.output.mime import Content, note_html, text_content

if TYPE_CHECKING:
    from monarch_nb.control.api import Regrouped, Seen
    from monarch_nb.core.hangs.stack_tree import Stack

IDLE: Final = "idle"
_TORCH: Final = ("/torch/autograd/", "/torch/distributed/", "/torch/nn/parallel/")
ADVICE: Final = "The stop button ends the wait; the next cell has a new process group"
LOOK: Final = "The stop button ends the wait; %mesh collectives and %mesh stacks show more"
SIGN: Final = "\N{WARNING SIGN}"
_ALARM: Final = (
    '<div style="margin:2px 0;padding:4px 8px;border-left:4px solid #e69500;'
    'background:rgba(230,149,0,0.16)"><b>{text}</b><br>{advice}</div>'
)
_NO_ANSWER: Final = "not answering"
_WHYS: Final = {
    "no process group": "no process group",
    "off": "nothing is recorded: TORCH_FR_BUFFER_SIZE is 0",
    None: "no answer; %mesh stacks shows where it is",
}
_CLOSED: Final = ("caused pair closure", "gloo/transport/")
"""In what gloo says of a wait in C++ that a stop has ended, by closing its connections: those of
this rank, or a moment earlier those of another one. Then it says closed, reset or broken pipe."""
_WAITS: Final = "monarch_nb/worker/groups/collectives.py"
STAYS: Final = "calls nothing from here"
_ROW: Final = (
    '<tr><td style="text-align:left;vertical-align:top;color:#7a7a7a;white-space:nowrap">{label}'
    '</td><td style="text-align:left;white-space:pre;padding-left:{indent}em">{text}</td></tr>'
)


def where_and_why(shell: InteractiveShell, found: Mapping[int, Sequence[Stack]]) -> list[str]:
    """Return lines such as `rank 3 is at Cell In[4], line 2: time.sleep(60)`, of main threads.

    Ranks at the same place are together, idle ones left out. The last is of ranks that wait in C++
    code of PyTorch: no interrupt may free them.
    """
    theirs = {rank: _main(stacks) for rank, stacks in found.items()}
    places = {rank: place(shell, frames) for rank, frames in theirs.items() if frames}
    lines = [
        f"{rank_words(group.ranks)} {are(group.ranks)} {places[group.ranks[0]]}"
        for group in fold_outputs(places)
    ]
    stuck = [rank for rank in places if any(part in theirs[rank][0].file for part in _TORCH)]
    if stuck:
        empty = "an empty namespace" if len(stuck) == 1 else "empty namespaces"
        lines.append(
            f"{rank_words(stuck)} {are(stuck)} in C++ code of PyTorch, which an interrupt may not "
            f"end; %mesh restart {rank_list(stuck)} starts again, with {empty}"
        )
    return lines


def place(shell: InteractiveShell, frames: Sequence[Frame]) -> str:
    """`at` the user's own line, and `in` what it has called in a library; innermost call first."""
    inner = frames[0]
    mine = next((frame for frame in frames if not tracebacks.is_library(frame.file)), None)
    if mine is None:
        return f"in {_called(inner)}"
    line = tracebacks.source_line(shell, mine.file, mine.line)
    at = f"at {_where(shell, mine)}" + (f": {line}" if line else "")
    return at if mine is inner else f"in {_called(inner)}, {at}"


def short(shell: InteractiveShell, stacks: Sequence[Stack]) -> str:
    """Return `data.py:41 load()`: the user's own innermost line, of the first thread; or idle."""
    frames = stacks[0].frames[::-1] if stacks else ()
    if not frames:
        return IDLE
    mine = next((each for each in frames if not tracebacks.is_library(each.file)), frames[0])
    function = "" if mine.function == "<module>" else f" {mine.function}()"
    cell = tracebacks.name_of_cell(shell, mine.file)
    if cell is not None:
        return f"{cell}, line {mine.line}{function}"
    return f"{PurePath(mine.file).name}:{mine.line}{function}"


def text(shell: InteractiveShell, stacks: Iterable[Stack]) -> str:
    """Return all calls of all threads as in a traceback, the innermost last; or idle."""
    parts = [
        (f"{stack.thread}:\n" if stack.thread else "")
        + "\n".join(f"  {_call(shell, frame, below=True)}" for frame in stack.frames)
        for stack in stacks
    ]
    return "\n\n".join(parts) or IDLE


def tree_content(shell: InteractiveShell, root: Node, taken: str) -> Content:
    """Show a tree as text and HTML, the ranks in front of the first call that they share; above it
    when it was taken.
    """
    rows = _rows(shell, lines_of(root))
    width = max((len(label) for label, _, _ in rows), default=0)
    plain = "\n".join(f"{label:{width}}  {'  ' * depth}{call}" for label, depth, call in rows)
    page = "".join(
        _ROW.format(label=html.escape(label), indent=1 + depth, text=html.escape(call))
        for label, depth, call in rows
    )
    style = "font:0.85em ui-monospace,monospace;margin:0"
    table = f'<table style="{style}">{page}</table>'
    return text_content(f"{taken}\n{plain}", note_html(taken) + table)


def _rows(shell: InteractiveShell, lines: Iterable[Line]) -> list[tuple[str, int, str]]:
    rows = []
    before: tuple[tuple[int, ...], int] | None = None
    for line in lines:
        label = (
            "" if (line.ranks, line.depth) == before and not line.ends else rank_words(line.ranks)
        )
        before = line.ranks, line.depth
        rows.append((label, line.depth, _said(shell, line)))
    return rows


def _said(shell: InteractiveShell, line: Line) -> str:
    if line.ends:
        return STAYS if line.depth else IDLE
    if line.node.frame is None:
        return f"{line.node.thread}:"
    return _call(shell, line.node.frame)


def _call(shell: InteractiveShell, frame: Frame, *, below: bool = False) -> str:
    source = tracebacks.source_line(shell, frame.file, frame.line)
    said = f"{_where(shell, frame)}, in {frame.function}"
    if below:
        return f"{said}\n    {source}" if source else said
    return f"{said}: {source}" if source else said


def _main(stacks: Sequence[Stack]) -> tuple[Frame, ...]:
    return next((stack.frames[::-1] for stack in stacks if not stack.thread), ())


def _called(frame: Frame) -> str:
    return f"{frame.function} ({PurePath(frame.file).name}:{frame.line})"


def _where(shell: InteractiveShell, frame: Frame) -> str:
    name = tracebacks.name_of_cell(shell, frame.file) or f'File "{frame.file}"'
    return f"{name}, line {frame.line}"


def standings(shell: InteractiveShell, seen: Mapping[int, Seen]) -> dict[int, Standing]:
    """Return where these ranks are, with words for the places of those that do not wait."""
    return {rank: one.standing._replace(place=_place(shell, one)) for rank, one in seen.items()}


class Alarm(NamedTuple):
    """Why the ranks of a cell that waits do not go on, and what a person can do; no advice where
    nothing is wrong: somebody debugs them."""

    text: str
    advice: str

    def content(self) -> Content:
        """Show it as a warning, if it is one."""
        if not self.advice:
            return text_content(self.text, note_html(self.text))
        lines = [f"{SIGN} {self.text}", self.advice]
        first, second = map(html.escape, lines)
        return text_content("\n".join(lines), _ALARM.format(text=first, advice=second))


def hang(shell: InteractiveShell, meshes: Mapping[str, Mapping[int, Seen]]) -> Alarm:
    """Say who waits for whom, of meshes in which ranks hang."""
    waits = any(one.standing.waits_in for seen in meshes.values() for one in seen.values())
    return Alarm(telling_line(shell, meshes), LOOK if waits else "")


def no_answer(said: str, silent: Mapping[str, Sequence[int]]) -> Alarm:
    """Say which ranks of which meshes do not answer, behind what is `said` of the wait."""
    of = " and ".join(
        f"{rank_words(ranks)}{f' of {mesh}' if len(silent) > 1 else ''}"
        for mesh, ranks in silent.items()
    )
    one = sum(map(len, silent.values())) == 1
    told = f"{of} {'does' if one else 'do'} not answer,"
    ends = "; ".join(f"%mesh interrupt --kill {rank_list(each)}" for each in silent.values())
    return Alarm(
        f"{told} stopped or frozen; {said}", f"%mesh status shows more, {ends} ends {_it(one)}"
    )


def _it(one: bool) -> str:
    return "it" if one else "them"


def telling_line(shell: InteractiveShell, meshes: Mapping[str, Mapping[int, Seen]]) -> str:
    """Return `ranks 0-2 in all_reduce #18 for 6 s; rank 3 in data.py:41 load()`, of each mesh."""
    told = {name: line_of(standings(shell, seen)) for name, seen in meshes.items()}
    return "; ".join(f"{name}: {text}" if len(told) > 1 else text for name, text in told.items())


def report(shell: InteractiveShell, seen: Mapping[int, Seen], last: int) -> str:
    """List the last collectives of these ranks, equal ones once, below what they disagree on."""
    found = standings(shell, seen)
    parts = []
    if told := disagreement(found):
        parts += [told, ADVICE, ""]
    elif any(each.waits_in for each in found.values()):
        parts += [line_of(found), ""]
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
    """Return what follows where ranks were stopped in a collective; empty where none was."""
    ranks = [rank for rank, error in errors.items() if _was_in_collective(error)]
    if not ranks:
        return ""
    has = "has" if len(ranks) == 1 else "have"
    return (
        f"{rank_words(ranks)} {has} left a collective before it had ended. "
        "The next cell has a new process group"
    )


def without_noise(record: ErrorRecord) -> ErrorRecord:
    """Return the record of a stop without what gloo says where that has ended a wait in C++."""
    if record.ename != "KeyboardInterrupt" or not _was_closed(record):
        return record
    return dataclasses.replace(record, context=None)


def regrouped(name: str, done: Regrouped) -> str:
    """Return what became of the process groups of a mesh."""
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
    place = short(shell, one.stacks)
    return place if place == IDLE else f"in {place}"


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
    in_python = any(each.filename.endswith(_WAITS) for each in error.frames)
    return is_stop and (in_python or _was_closed(error))


def _was_closed(error: ErrorRecord) -> bool:
    return error.context is not None and any(why in error.context.evalue for why in _CLOSED)
