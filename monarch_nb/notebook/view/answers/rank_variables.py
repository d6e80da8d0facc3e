"""What a page is told of ranks' variables: a table as `%mesh vars` has it, windows and pictures.

Rule of the file: only what somebody has opened is asked for; `%mesh vars` says the same in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.errors.folding import listed_ranks, rank_words
from monarch_nb.core.wire.messages.status import GetPicture, GetWindow, LocalTensor
from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, Json, plain

if TYPE_CHECKING:
    from monarch_nb.notebook.view.answers.source import Source

ANSWER_S: Final = 4.0
"""A rank goes through a tensor for two seconds at most."""

MAX_VALUES: Final = 8
"""Of a variable that each rank has another value of; all that are told, where one is asked for."""


def told(source: Source, mesh: str, name: str | None) -> Json:
    """Return what ranks have; of one variable, where it is named, also what is in it."""
    found = source.variables(mesh, [name] if name else ())
    wanted = [each for each in found["variables"] if name in (None, each["name"])]
    if name and not wanted and found["no_answer"]:
        silent = rank_words(listed_ranks(found["no_answer"]))
        raise ValueError(f"no answer of {silent}; %mesh status shows why")
    if name and not wanted:
        raise ValueError(f"no rank of {mesh} has a variable {plain(name, MAX_WHAT)!r} any more")
    return {
        "size": found["size"],
        "left_out": found["left_out"],
        "no_answer": found["no_answer"],
        "variables": [_variable(each, None if name else MAX_VALUES) for each in wanted],
    }


def window(
    source: Source, mesh: str, rank: int, name: str, indices: Sequence[int], row: int, column: int
) -> Json:
    """Return some of the numbers of a tensor of a rank."""
    asked = GetWindow(name, list(indices), row, column)
    found = source.ask_rank(mesh, rank, asked, ANSWER_S)
    return {
        **_tensor(found.tensor),
        "indices": found.indices,
        "row": found.row,
        "column": found.column,
        "numbers": found.numbers,
    }


def picture(source: Source, mesh: str, rank: int, name: str, indices: Sequence[int]) -> Json:
    """Return a tensor of a rank as dots."""
    found = source.ask_rank(mesh, rank, GetPicture(name, list(indices)), ANSWER_S)
    return {
        **_tensor(found.tensor),
        "indices": found.indices,
        "rows": found.rows,
        "columns": found.columns,
        "each": found.each,
        "least": found.least,
        "greatest": found.greatest,
        "dots": found.dots,
    }


def _tensor(found: LocalTensor) -> Json:
    return {
        "shape": found.shape,
        "dtype": plain(found.dtype, MAX_WHAT),
        "device": plain(found.device, MAX_WHAT),
        "whole": found.whole,
    }


def _variable(told: Mapping[str, Any], most: int | None) -> Json:
    groups = [
        {
            **group,
            "type": plain(group["type"], MAX_WHAT),
            "devices": [_plain_value(each) for each in group["devices"][:most]],
            "values": [_plain_value(each) for each in group["values"][:most]],
        }
        for group in told["groups"][:most]
    ]
    return {
        **told,
        "name": plain(told["name"], MAX_WHAT),
        "groups": groups,
        "more": max(0, len(told["groups"]) - len(groups)),
    }


def _plain_value(value: Mapping[str, str]) -> Json:
    return {"ranks": value["ranks"], "is": plain(value["is"], MAX_WHAT)}
