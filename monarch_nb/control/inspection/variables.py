"""The variables of ranks as one table: which ranks have the same, and where they differ.

Rule: ranks whose variable is of the same type, shape and memory are together; their devices and
values are told beside that, since each rank has a GPU and a loss of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.control.inspection.reports import ranks_of, states
from monarch_nb.core.errors.folding import fold_outputs, rank_list
from monarch_nb.core.wire.messages.status import ListVariables, Variable
from monarch_nb.process.futures import ask_all

if TYPE_CHECKING:
    from monarch_nb.control.inspection.asked import Asked
    from monarch_nb.control.inspection.reports import Inspected
    from monarch_nb.meshes.states import ProcsState
    from monarch_nb.process.process import Proc

ANSWER_S: Final = 3.0
MAX_VALUES: Final = 64  # of one variable that differ


def table(inspected: Inspected, asked: Asked) -> dict[str, Any]:
    """Tell the variables of the ranks' cells."""
    meshes = states(inspected, asked.mesh)
    return {"meshes": [of_mesh(inspected.proc, state, asked.ranks) for state in meshes]}


def of_mesh(
    proc: Proc, state: ProcsState, wanted: Collection[int] | None, contents: Sequence[str] = ()
) -> dict[str, Any]:
    """Tell the variables of one mesh, as docs/terminal.md describes them; with a summary of what is
    in those that `contents` names. Raises `ValueError` for ranks that it has not."""
    ranks = ranks_of(state.name, len(state.processes), wanted)
    rank_of = {state.processes[rank]: rank for rank in ranks if rank not in state.lost}
    told = ask_all.ask(proc, dict.fromkeys(rank_of, ListVariables(list(contents))), ANSWER_S)
    by_name: dict[str, dict[int, Variable]] = {}
    for process, answer in told.items():
        for one in answer.variables:
            by_name.setdefault(one.name, {})[rank_of[process]] = one
    answered = {rank_of[process] for process in told}
    whole = {rank_of[process] for process, answer in told.items() if not answer.left_out}
    return {
        "name": state.name,
        "size": len(state.processes),
        "variables": [_variable(by_name[name], whole) for name in sorted(by_name)],
        "left_out": max((answer.left_out for answer in told.values()), default=0),
        "no_answer": rank_list(rank for rank in ranks if rank not in answered),
    }


def _variable(found: Mapping[int, Variable], whole: Collection[int]) -> dict[str, Any]:
    alike = {rank: one._replace(device=None, value=None) for rank, one in found.items()}
    keys = {rank: (*one[:2], tuple(one.shape or ()), *one[3:]) for rank, one in alike.items()}
    groups = fold_outputs(keys)
    missing = rank_list(rank for rank in whole if rank not in found)
    values = {one.value for one in found.values()}
    return {
        "name": next(iter(found.values())).name,
        "differs": bool(missing) or len(groups) > 1 or len(values) > 1,
        "missing": missing,
        "groups": [_group({rank: found[rank] for rank in group.ranks}) for group in groups],
    }


def _group(found: Mapping[int, Variable]) -> dict[str, Any]:
    one = next(iter(found.values()))
    return {
        "ranks": rank_list(found),
        "type": one.type,
        "shape": one.shape,
        "dtype": one.dtype,
        "bytes": one.nbytes,
        "length": one.length,
        "parameters": one.parameters,
        "devices": _folded({rank: each.device for rank, each in found.items()}),
        "values": _folded({rank: each.value for rank, each in found.items()}),
    }


def _folded(texts: Mapping[int, str | None]) -> list[dict[str, str]]:
    known = {rank: text for rank, text in texts.items() if text is not None}
    return [
        {"ranks": rank_list(group.ranks), "is": known[group.ranks[0]]}
        for group in fold_outputs(known)[:MAX_VALUES]
    ]
