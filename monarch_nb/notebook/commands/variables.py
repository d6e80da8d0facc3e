"""`%mesh put`, `get` and `vars`: variables go to the ranks and come back, or are described."""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING, Any, Final

from IPython.display import display

from monarch_nb.core.shape import selection
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.notebook import options
from monarch_nb.notebook.cells import mesh_cell
from monarch_nb.notebook.commands.command import Command
from monarch_nb.notebook.display.variables_view import VariablesView
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import ProcMesh

_PUT: Final = Parser("%mesh put", "%mesh put x y, or %mesh put x gpus=0:2, or %mesh put x -t 0,2")
_PUT.add_argument("words", nargs="+", metavar="NAME")
_PUT.add_argument("-t", "--targets", nargs="+", default=[], metavar="RANKS")
_PUT.add_argument("--name")

_GET: Final = Parser("%mesh get", "%mesh get x, or %mesh get x gpus=0:2, or %mesh get x --stack")
_GET.add_argument("words", nargs="+", metavar="NAME")
_GET.add_argument("-t", "--targets", nargs="+", default=[], metavar="RANKS")
_GET.add_argument("--name")
_GET.add_argument("--stack", action="store_true")

_VARS: Final = Parser("%mesh vars", "%mesh vars, or %mesh vars model loss --ranks 0-3")
_VARS.add_argument("names", nargs="*", metavar="NAME")
_VARS.add_argument("--ranks", type=options.ranks, metavar="RANKS")
_VARS.add_argument("--name")
_VARS.add_argument("--stats", action="store_true")


def _put(session: Session, chosen: argparse.Namespace) -> None:
    names, parts = _chosen(session, chosen, _PUT)
    variables = session.shell.user_ns
    for name in names:
        if name not in variables:
            close = difflib.get_close_matches(name, _own(variables), 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise MagicError(f"there is no variable {name!r} here{hint}")
    session.link.attach()
    session.control.put(parts, {name: variables[name] for name in names})


def _get(session: Session, chosen: argparse.Namespace) -> Any:
    names, parts = _chosen(session, chosen, _GET)
    if len(names) != 1:
        _GET.error(f"takes one variable, not {' and '.join(names)}")
    session.link.attach()
    found = session.control.get(parts, names[0], stacked=chosen.stack)
    return found.item() if _is_one_rank(chosen, parts) and not chosen.stack else found


def _is_one_rank(chosen: argparse.Namespace, parts: list[ProcMesh]) -> bool:
    # Whether one was named, as in `2` or `hosts=0 gpus=1`; a part of the mesh stays one
    named = [word for word in [*chosen.words[1:], *chosen.targets] if not word.startswith("@")]
    is_part = any(":" in word for word in named)
    return bool(named) and not is_part and sum(len(part.ranks) for part in parts) == 1


def _chosen(
    session: Session, chosen: argparse.Namespace, parser: Parser
) -> tuple[list[str], list[ProcMesh]]:
    # Names come first; where words stop to be names, the selection begins
    words = list(chosen.words)
    count = next((i for i, word in enumerate(words) if not _is_name(word)), len(words))
    names, selected = words[:count], words[count:]
    if not names:
        parser.error("needs the name of a variable first")
    if selected and chosen.targets:
        parser.error("takes ranks once, by --targets or without")
    meshes = [word[1:] for word in selected if word.startswith("@")]
    selected = [word for word in selected if not word.startswith("@")]
    if len({*meshes, *filter(None, [chosen.name])}) > 1:
        parser.error("is for one mesh")
    mesh = session.meshes.pick(chosen.name or next(iter(meshes), None))
    parts = selection.parts(mesh, selected or chosen.targets)
    mesh_cell.check_living(session, mesh, sorted(rank for part in parts for rank in part.ranks))
    return names, parts


def _is_name(word: str) -> bool:
    return word.isidentifier() and word != "all"


def _own(variables: dict[str, Any]) -> list[str]:
    return [name for name in variables if not name.startswith("_")]


def _vars(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.to_look_at(chosen.name)
    if chosen.ranks is not None:
        check_ranks(mesh, chosen.ranks)
    if chosen.stats and not chosen.names:
        _VARS.error("goes through variables that are named: %mesh vars x --stats")
    session.link.attach()
    told = session.control.variables(mesh, chosen.ranks, chosen.names if chosen.stats else ())
    known = {each["name"]: each for each in told["variables"]}
    if missing := [name for name in chosen.names if name not in known]:
        close = difflib.get_close_matches(missing[0], known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise MagicError(f"no rank of {mesh.name} has a variable {missing[0]!r}{hint}")
    display(VariablesView(mesh.name, [known[name] for name in chosen.names or known], told))


PUT: Final = Command(_PUT, _put, (
    ("put NAME ... [SELECTION]", "send variables of the notebook to the ranks"),
))  # fmt: skip
GET: Final = Command(_GET, _get, (
    ("get NAME [SELECTION]", "a variable of the ranks, as a ValueMesh: v = %mesh get loss"),
    ("get NAME RANK", "the value on one rank: %mesh get loss 2"),
    ("    --stack", "as one tensor or array; the mesh's axes come first"),
    ("    -t, --targets RANKS", "the selection, as ipyparallel has it; of put too"),
    ("    --name MESH", "another mesh than the current one; of put too"),
))  # fmt: skip
VARS: Final = Command(_VARS, _vars, (
    ("vars [NAME ...]", "what ranks have: type, shape, memory, and where they differ"),
    ("    --ranks RANKS", "of these ranks only: 3 or 0,2 or 0-3"),
    ("    --stats", "least, greatest, mean, NaN of what is in them; models too: all parameters"),
))  # fmt: skip
