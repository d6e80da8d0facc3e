"""The code of cells: compiled once per text, split where results are shown, kept for tracebacks.

The shell that comes as an argument is IPython's; of it only compiler flags and settings are used.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import re
from types import CodeType
from typing import Any, Final, TypeVar

from monarch_nb.worker.cells.loops import has_elastic_loops, with_elastic_loops

MAX_COMPILED: Final = 64  # cells whose code is kept
MAX_SOURCES: Final = 2_000  # cells whose text is kept for tracebacks and `inspect`

_BLANK_LINES: Final = re.compile(r"(?:[ \t]*\n)*")
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclasses.dataclass(frozen=True, slots=True)
class CellCode:
    """What to run, in turn; `is_quiet` if the cell ends in a semicolon, `awaits` at top level."""

    codes: tuple[CodeType, ...]
    is_quiet: bool
    awaits: bool


class CellCompiler:
    """Turns the Python of cells into code objects, and remembers cells it has seen."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[object, ...], CellCode] = {}
        self._sources: dict[str, tuple[int, str]] = {}

    def compile(self, shell: Any, text: str, filename: str, offset: int) -> CellCode:
        """Compile `text`, which stands below `offset` lines. Raises what the compiler raises."""
        if shell.ast_transformers:  # they may answer differently every time
            return _compile(shell, text, filename, offset)
        settings = shell.compile.flags, shell.ast_node_interactivity, shell.autoawait
        key = text, filename, offset, *settings
        if key not in self._compiled:
            keep(self._compiled, key, _compile(shell, text, filename, offset), MAX_COMPILED)
        return self._compiled[key]

    def remember_source(self, filename: str, code: str, first_line: int) -> None:
        """Let tracebacks, `inspect` and compilers of functions find the text as it was typed."""
        source = first_line, code
        if self._sources.get(filename) == source and filename in linecache.cache:
            return
        lines = [f"{line}\n" for line in ("\n" * (first_line - 1) + code).split("\n")]
        linecache.cache[filename] = len(code), None, lines, filename
        for old in keep(self._sources, filename, source, MAX_SOURCES):
            linecache.cache.pop(old, None)


def without_blank_start(code: str) -> tuple[str, int]:
    """Return the code from its first line with text, and how many empty lines stood before it.

    IPython drops them, but line numbers should be the notebook's.
    """
    match = _BLANK_LINES.match(code)
    start = match.end() if match else 0
    return code[start:], code.count("\n", 0, start)


def keep(kept: dict[_K, _V], key: _K, value: _V, limit: int) -> list[_K]:
    kept[key] = value
    old = list(kept)[: len(kept) - limit] if len(kept) > limit else []
    for one in old:
        del kept[one]
    return old


def _compile(shell: Any, text: str, filename: str, offset: int) -> CellCode:
    compiler = shell.compile  # it carries `from __future__ import ...` to the cells that follow
    tree = shell.transform_ast(compiler.ast_parse("\n" * offset + text, filename))
    if has_elastic_loops(text):
        tree = with_elastic_loops(tree)
    with compiler.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0):
        codes = tuple(
            compiler(part, filename, "single" if isinstance(part, ast.Interactive) else "exec")
            for part in _parts(tree.body, shell.ast_node_interactivity)
        )
    quiet = ";" in text and shell.displayhook.semicolon_at_end_of_expression(text)
    awaits = any(code.co_flags & inspect.CO_COROUTINE for code in codes)
    return CellCode(codes, bool(quiet), awaits)


def _parts(body: list[ast.stmt], interactivity: str) -> list[ast.Module | ast.Interactive]:
    # Split for the setting `ast_node_interactivity`; an interactive part shows its expressions
    if not body:
        return []
    if interactivity == "all":
        return [ast.Interactive(body)]
    shows = interactivity == "last" or isinstance(body[-1], ast.Expr)
    if interactivity == "none" or not shows:
        return [ast.Module(body, [])]
    silent: list[ast.Module | ast.Interactive] = [ast.Module(body[:-1], [])] if body[1:] else []
    return [*silent, ast.Interactive(body[-1:])]
