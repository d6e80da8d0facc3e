"""Which cells a new process has to run to know what a cell uses: those that define it. Pure.

A cell defines what it binds at its top level: imports, functions, classes, assignments, also to an
attribute or an item of something (`config.lr = 1e-3`). What is only called (`optimizer.step()`) is
no definition, unless it makes process groups: training that was done before is not done again. A
cell is wanted if it defines what the last one needs, or what a wanted one does.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

ALL: Final = "*"
"""What `from module import *` defines: anything. So do cells that make process groups, by name."""
_GROUP_MAKERS: Final = frozenset(
    {
        "init_process_group",
        "destroy_process_group",
        "new_group",
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "init_device_mesh",
        "device_mesh",
    }
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Names(NamedTuple):
    """What a cell defines at its top level, and what it uses before that; what its functions use
    in any case, as a later cell may define that anew. `needs_as_last`: if there is no later one;
    `needs_now`: without what functions use that it only makes."""

    defines: frozenset[str]
    needs: frozenset[str]
    needs_as_last: frozenset[str]
    needs_now: frozenset[str]


def wanted(cells: Sequence[str], last: str) -> list[int]:
    """Return which of these cells, in their order, define what the last one needs.

    Example:
        >>> wanted(["import torch", "x = torch.ones(3)", "y = 2", "x.add_(1)"], "print(x)")
        [0, 1]
    """
    needed = {ALL, *names_of(last).needs_as_last}
    left = dict(enumerate(map(names_of, cells)))
    found: list[int] = []
    while more := [i for i, names in left.items() if not needed.isdisjoint(names.defines)]:
        for index in more:  # what functions use, a later cell may define
            needed |= left.pop(index).needs
        found += more
    return sorted(found)


def only_defines(code: str) -> bool:
    """Tell whether a cell is there for what it defines: no loop of it, which trains perhaps, would
    run, and no process group be made, which takes all ranks.

    Example:
        >>> only_defines("import torch"), only_defines("for x in data: total += x")
        (True, False)
    """
    names = names_of(code)
    return bool(names.defines) and not _works(ast.parse(code))


def _works(node: ast.AST) -> bool:
    # of what runs with the cell, not of functions that it makes
    if isinstance(node, ast.For | ast.AsyncFor | ast.While) or _makes_group(node):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return any(map(_works, ast.iter_child_nodes(node)))


def names_of(code: str) -> Names:
    """Return the names of a cell; of one that is no Python, none."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return Names(*[frozenset()] * 4)
    scope = _Scope()
    scope.visit_all(tree.body)
    known = vars(builtins).keys()
    defines = scope.bound | ({ALL} if any(map(_makes_group, ast.walk(tree))) else set())
    return Names(
        frozenset(defines),
        frozenset((scope.needs | scope.late) - known),
        frozenset((scope.needs | scope.late_unbound) - known),
        frozenset(scope.needs - known),
    )


def _makes_group(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    name = getattr(called, "attr", getattr(called, "id", ""))
    return name in _GROUP_MAKERS


class _Scope(ast.NodeVisitor):
    """Goes through statements in the order in which they run."""

    def __init__(self, *, is_function: bool = False) -> None:
        self.bound: set[str] = set()
        self.needs: set[str] = set()
        self.late: set[str] = set()  # by functions, when they are called
        self.late_unbound: set[str] = set()  # of those, not bound when the function is made
        self._is_function = is_function
        self.changed: set[str] = set()  # by setting an attribute or an item
        self.outer: set[str] = set()  # said to be global

    def visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)
        self.bound |= self.changed

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._need(node.id)
        else:
            self.bound.add(node.id)

    def _need(self, name: str) -> None:
        if name not in self.bound:
            self.needs.add(name)

    def visit_Import(self, node: ast.Import) -> None:
        self.bound |= {(each.asname or each.name).partition(".")[0] for each in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.bound |= {each.asname or each.name for each in node.names}

    def visit_Global(self, node: ast.Global) -> None:
        self.outer |= set(node.names)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        inner = _Scope()
        inner.visit_all(node.body)
        self._take(inner.needs)
        self._take_late(inner.late)
        self.bound.add(node.name)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in node.decorator_list:
            self.visit(each)
        self._function(node, node.body)
        self.bound.add(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node, [node.body])

    def _function(self, node: _Function, body: Sequence[ast.AST]) -> None:
        arguments = node.args
        for each in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(each)
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        starred = filter(None, (arguments.vararg, arguments.kwarg))
        inner = self._inside(body, [each.arg for each in (*every, *starred)])
        self._take_late(inner.needs | inner.late)

    def _inside(self, body: Sequence[ast.AST], names: Iterable[str]) -> _Scope:
        inner = _Scope(is_function=True)
        inner.bound.update(names)
        stored = _Scope(is_function=True)  # local in all of the body, wherever it is bound
        stored.visit_all(body)
        inner.bound |= stored.bound - stored.outer - stored.changed
        inner.visit_all(body)
        self.bound |= stored.outer & stored.bound
        return inner

    def _take(self, names: Iterable[str]) -> None:
        for name in names:
            self._need(name)

    def _take_late(self, names: set[str]) -> None:
        if self._is_function:  # a function within has its names
            self._take(names)
        else:
            self.late |= names
            self.late_unbound |= names - self.bound

    def _visit_comprehension(self, node: _Comprehension) -> None:
        inner = _Scope()
        for each in node.generators:
            inner.visit(each.iter)
            inner.visit(each.target)
            inner.visit_all(each.ifs)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        inner.visit_all(parts)
        self._take(inner.needs)
        self._take_late(inner.late)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.visit(node.target)
        self.visit_all((*node.body, *node.orelse))

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name is not None:
            self.bound.add(node.name)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self.visit_all(node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self._need(node.target.id)
        self.visit(node.target)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._changes(node, node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._changes(node, node.ctx)

    def _changes(self, node: ast.Attribute | ast.Subscript, how: ast.expr_context) -> None:
        self.generic_visit(node)
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        if isinstance(how, ast.Store) and isinstance(inner, ast.Name):
            self.changed.add(inner.id)
