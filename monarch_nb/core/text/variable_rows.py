"""The variables of ranks as rows of a table, for a terminal and for a notebook.

Ranks whose variable is alike are one row; the name stands in the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from monarch_nb.core.errors.folding import listed_ranks, rank_runs, rank_words
from monarch_nb.core.text.units import size_text

HEADINGS: Final = ("name", "ranks", "type", "shape", "dtype", "device", "memory", "value", "")
MAX_VALUES: Final = 3


def rows(variable: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Return the rows of one variable, as docs/terminal.md describes it."""
    missing = rank_words(listed_ranks(variable["missing"])) if variable["missing"] else ""
    mark = f"differs: not on {missing}" if missing else "differs" if variable["differs"] else ""
    name = variable["name"]
    for group in variable["groups"]:
        memory = "" if group["bytes"] is None else size_text(group["bytes"])
        yield (
            *(name, rank_runs(listed_ranks(group["ranks"])), _short(group["type"]), _extent(group)),
            *(group["dtype"] or "", _several(group["devices"]), memory),
            *(_several(group["values"]), mark),
        )
        name = mark = ""


def _short(type_name: str) -> str:
    # without the modules, whose names are longer than all the rest
    return type_name.rpartition(".")[2]


def _extent(group: Mapping[str, Any]) -> str:
    if group["shape"] is not None:
        return f"[{', '.join(map(str, group['shape']))}]"
    if group["parameters"] is not None:
        return f"{group['parameters']:,} parameters"
    return "" if group["length"] is None else f"length {group['length']}"


def _several(found: Sequence[Mapping[str, str]]) -> str:
    more = ", ..." if len(found) > MAX_VALUES else ""
    return ", ".join(each["is"] for each in found[:MAX_VALUES]) + more
