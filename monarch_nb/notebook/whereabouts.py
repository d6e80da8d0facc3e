"""Where ranks are that do not end, in words: the user's own line, and what it has called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from monarch_nb.core.folding import fold_outputs, rank_words
from monarch_nb.core.stacks import Frame
from monarch_nb.notebook import sources, tracebacks


def lines(shell: Any, found: Mapping[int, Sequence[Frame]]) -> list[str]:
    """`rank 3 is at Cell In[4], line 2: time.sleep(60)`; ranks at the same place together."""
    theirs = {rank: _theirs(frames) for rank, frames in found.items()}
    places = {rank: place(shell, frames) for rank, frames in theirs.items() if frames}
    return [
        f"{rank_words(group.ranks)} {'is' if len(group.ranks) == 1 else 'are'} "
        f"{places[group.ranks[0]]}"
        for group in fold_outputs(places)
    ]


def stack(shell: Any, frames: Iterable[Frame]) -> str:
    """All calls as in a traceback, the innermost last."""
    return "\n".join(
        f"  {_where(shell, frame)}, in {frame.function}{_below(shell, frame)}"
        for frame in reversed(_theirs(frames))
    )


def _theirs(frames: Iterable[Frame]) -> list[Frame]:
    return [frame for frame in frames if not tracebacks.is_ours(frame.file)]


def place(shell: Any, frames: Sequence[Frame]) -> str:
    """`at` the user's own line, and `in` what it has called in a library."""
    inner = frames[0]
    mine = next((frame for frame in frames if not tracebacks.is_library(frame.file)), None)
    if mine is None:
        return f"in {_called(inner)}"
    line = sources.line(shell, mine.file, mine.line)
    at = f"at {_where(shell, mine)}" + (f": {line}" if line else "")
    return at if mine is inner else f"in {_called(inner)}, {at}"


def _called(frame: Frame) -> str:
    return f"{frame.function} ({PurePath(frame.file).name}:{frame.line})"


def _where(shell: Any, frame: Frame) -> str:
    name = tracebacks.name_of_cell(shell, frame.file) or f'File "{frame.file}"'
    return f"{name}, line {frame.line}"


def _below(shell: Any, frame: Frame) -> str:
    line = sources.line(shell, frame.file, frame.line)
    return f"\n    {line}" if line else ""
