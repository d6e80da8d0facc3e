"""Elastic loops in the code of cells: what their bodies raise reaches the loop.

A generator does not see an error of the body that it yields to. So a cell's

    for state in elastic.run(state, until=100): BODY

is compiled as

    LOOP = elastic.run(state, until=100)
    try:
        for state in LOOP:
            try: BODY
            except BaseException as error:
                if not LOOP.absorb(error): raise
    finally: LOOP.close()

with the lines where they were. `break`, `continue`, `return` and `else` mean what they meant.
"""

from __future__ import annotations

import ast
from typing import Final

_CALLS: Final = frozenset({"elastic.run", "monarch_nb.elastic.run"})
_LOOP: Final = "__elastic_loop_{}"
_ERROR: Final = "__elastic_error"


def with_elastic_loops(tree: ast.Module) -> ast.Module:
    """Return the code with its elastic loops, if it has any, as above."""
    found: ast.Module = _Loops().visit(tree)
    return ast.fix_missing_locations(found)


def has_elastic_loops(text: str) -> bool:
    """Tell whether it may have some. Quick."""
    return "elastic.run" in text


class _Loops(ast.NodeTransformer):
    def __init__(self) -> None:
        self._count = 0

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if not isinstance(node.iter, ast.Call) or ast.unparse(node.iter.func) not in _CALLS:
            return node
        self._count += 1
        name, where = _LOOP.format(self._count), node.iter
        made = ast.Assign([ast.Name(name, ast.Store())], node.iter)
        node.iter = ast.Name(name, ast.Load())
        node.body = [_guarded(node.body, name)]
        left = ast.Expr(_call(name, "close"))
        found: list[ast.stmt] = [made, ast.Try([node], [], [], [left])]
        for each in (made, node.iter, left, found[1]):
            ast.copy_location(each, where)
        return found


def _guarded(body: list[ast.stmt], name: str) -> ast.Try:
    absorbed = ast.UnaryOp(ast.Not(), _call(name, "absorb", ast.Name(_ERROR, ast.Load())))
    handler = ast.ExceptHandler(
        ast.Name("BaseException", ast.Load()), _ERROR, [ast.If(absorbed, [ast.Raise()], [])]
    )
    made = ast.copy_location(ast.Try(body, [handler], [], []), body[0])
    ast.copy_location(handler, body[0])
    return made


def _call(name: str, method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(name, ast.Load()), method, ast.Load()), [*arguments], [])
