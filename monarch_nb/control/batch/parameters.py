"""Values that a run gives to the parameters of its notebook: `-p lr=1e-3`.

Rule of the file: text in, text out. The parameters of a notebook are what the cell tagged
`parameters` assigns, in the manner of papermill; a `%%mesh` cell assigns them on ranks.
"""

from __future__ import annotations

import ast
import difflib
import json
import keyword
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

_NOT_PYTHON = ("%", "!")  # lines of IPython's own
_NO_LITERAL = (ValueError, SyntaxError, MemoryError, RecursionError)


def values(given: Iterable[str]) -> dict[str, Any]:
    """Return what is typed as `NAME=VALUE`, by name: a literal of Python or JSON, else the text.

    Raises `ValueError` for what is neither.

    Example:
        >>> values(["lr=1e-3", "resume=true", "model=small"])
        {'lr': 0.001, 'resume': True, 'model': 'small'}
    """
    found = {}
    for text in given:
        typed, equals, written = text.partition("=")
        name = unicodedata.normalize("NFKC", typed)  # as Python reads it
        if not equals or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"-p {text}: write it as -p lr=1e-3")
        value = _value(written)
        found[name] = value if _is_literal(value) else written
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except _NO_LITERAL:
        pass
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _is_literal(value: Any) -> bool:
    # else the cell that assigns it would fail: 1e999 is written `inf`
    try:
        ast.literal_eval(repr(value))
    except _NO_LITERAL:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN is no literal of Python


def check(given: Collection[str], cell: str) -> None:
    """Raise `ValueError` for a name that the parameters cell does not assign: nothing would read
    it."""
    known = assigned(cell)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            there = ", ".join(known) or "none"
            raise ValueError(
                f"-p {name}: the notebook has no such parameter.{hint} Its parameters: {there}"
            )


def assigned(cell: str) -> list[str]:
    """Return the names that a cell assigns at its top level, in their order."""
    head, body = _split(cell)
    del head
    lines = ("" if line.startswith(_NOT_PYTHON) else line for line in body.splitlines())
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError as error:
        raise ValueError(f"the parameters cell is not Python: {error.msg}") from None
    return list(dict.fromkeys(name for statement in tree.body for name in _targets(statement)))


def _targets(statement: ast.stmt) -> Iterator[str]:
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = (statement.target,)
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def source(given: Mapping[str, Any], cell: str = "") -> str:
    """Return the cell that assigns these values where the parameters cell does: on the ranks of
    its `%%mesh` line, if it begins with one."""
    head, _ = _split(cell)
    lines = [f"{name} = {value!r}" for name, value in given.items()]
    return "\n".join([*([head] if head else []), "# Parameters", *lines])


def _split(cell: str) -> tuple[str, str]:
    # the line of a cell magic, and what is below it
    first, _, rest = cell.partition("\n")
    return (first, rest) if first.startswith("%%") else ("", cell)
