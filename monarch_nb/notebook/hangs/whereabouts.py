"""Where ranks are, in words: the user's own line and what it has called, or all calls as a tree."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import fold_outputs, rank_words
from monarch_nb.core.hangs.stack_tree import Line, Node, Stack
from monarch_nb.core.hangs.stack_tree import lines as lines_of
from monarch_nb.core.hangs.stacks import Frame
from monarch_nb.notebook.output.mime import Content, text_content
from monarch_nb.notebook.source import tracebacks

IDLE: Final = "idle"
_TORCH: Final = ("/torch/autograd/", "/torch/distributed/", "/torch/nn/parallel/")
STAYS: Final = "calls nothing from here"
_ROW: Final = (
    '<tr><td style="text-align:left;vertical-align:top;color:#7a7a7a;white-space:nowrap">{label}'
    '</td><td style="text-align:left;white-space:pre;padding-left:{indent}em">{text}</td></tr>'
)


def lines(shell: InteractiveShell, found: Mapping[int, Sequence[Stack]]) -> list[str]:
    """`rank 3 is at Cell In[4], line 2: time.sleep(60)`; ranks at the same place together.

    Of their main threads; ranks where that is idle are left out.
    """
    theirs = {rank: _main(stacks) for rank, stacks in found.items()}
    places = {rank: place(shell, frames) for rank, frames in theirs.items() if frames}
    return [
        f"{rank_words(group.ranks)} {'is' if len(group.ranks) == 1 else 'are'} "
        f"{places[group.ranks[0]]}"
        for group in fold_outputs(places)
    ]


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
    """`data.py:41 load()`: the user's own innermost line, of the first thread; or idle."""
    frames = stacks[0].frames[::-1] if stacks else ()
    if not frames:
        return IDLE
    mine = next((each for each in frames if not tracebacks.is_library(each.file)), frames[0])
    function = "" if mine.function == "<module>" else f" {mine.function}()"
    cell = tracebacks.name_of_cell(shell, mine.file)
    if cell is not None:
        return f"{cell}, line {mine.line}{function}"
    return f"{PurePath(mine.file).name}:{mine.line}{function}"


def is_in_torch(stacks: Sequence[Stack]) -> bool:
    """Whether the main thread is in code that PyTorch runs without Python."""
    frames = _main(stacks)
    return bool(frames) and any(part in frames[0].file for part in _TORCH)


def text(shell: InteractiveShell, stacks: Iterable[Stack]) -> str:
    """All calls of all threads as in a traceback, the innermost last; or idle."""
    parts = [
        (f"{stack.thread}:\n" if stack.thread else "")
        + "\n".join(f"  {_call(shell, frame, below=True)}" for frame in stack.frames)
        for stack in stacks
    ]
    return "\n\n".join(parts) or IDLE


def tree_content(shell: InteractiveShell, root: Node) -> Content:
    """A tree to be displayed: as text, the ranks in front of the first call that they share."""
    rows = _rows(shell, lines_of(root))
    width = max((len(label) for label, _, _ in rows), default=0)
    plain = "\n".join(f"{label:{width}}  {'  ' * depth}{call}" for label, depth, call in rows)
    page = "".join(
        _ROW.format(label=html.escape(label), indent=1 + depth, text=html.escape(call))
        for label, depth, call in rows
    )
    style = "font:0.85em ui-monospace,monospace;margin:0"
    return text_content(plain, f'<table style="{style}">{page}</table>')


def _rows(shell: InteractiveShell, lines: Iterable[Line]) -> list[tuple[str, int, str]]:
    rows = []
    before: tuple[tuple[int, ...], int] | None = None
    for line in lines:
        label = "" if (line.ranks, line.depth) == before and not line.ends else _label(line)
        before = line.ranks, line.depth
        rows.append((label, line.depth, _said(shell, line)))
    return rows


def _label(line: Line) -> str:
    return rank_words(line.ranks)


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
