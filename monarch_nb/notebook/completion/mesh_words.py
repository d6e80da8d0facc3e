"""Where in a cell somebody types (the line of a magic, code for ranks, or neither), and what may be
typed after `%mesh` and `%%mesh`: commands, options, meshes, axes, ranks.

Rule of the file: offsets are in code points, as Jupyter's are; it says what IPython would do with
the cell, so the first line that is not empty decides. It reads the parsers, so that a command that
is added completes by itself. It asks no rank and changes nothing.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.control.engines import NAMED
from monarch_nb.control.jobs import profiles
from monarch_nb.control.jobs.kept import naming
from monarch_nb.notebook import commands, options
from monarch_nb.notebook.meshes import Meshes

if TYPE_CHECKING:
    from monarch_nb.control.api import ProcMesh

_CELL: Final = re.compile(r"(?:[ \t]*\n)*%%(?:mesh|px)(?!\w)(?P<line>[^\n]*)\n?")
_LINE: Final = re.compile(r"[ \t]*%mesh(?!\w)")
_PX: Final = re.compile(r"[ \t]*%px(?!\w)[ \t]*")

MAX_PLACES: Final = 64  # ranks, or places of an axis, that are listed

Word = tuple[str, str]  # and its kind


@dataclass(frozen=True)
class MeshLine:
    """In what follows `%mesh`, or `%%mesh` if `is_cell`: the text up to the cursor."""

    is_cell: bool
    text: str
    start: int


@dataclass(frozen=True)
class RankCode:
    """In code for the ranks that `line` selects. `start` is where the code begins in the cell."""

    line: str
    code: str
    start: int
    cursor: int


Place = MeshLine | RankCode


def place_of(cell: str, cursor: int, auto: Callable[[list[str]], str | None]) -> Place | None:
    """Return the place of the cursor; None in the controller's code. `auto` is
    `AutoTransform.line_for`.
    """
    if head := _CELL.match(cell):
        if cursor >= head.end() and head[0].endswith("\n"):
            return RankCode(head["line"], cell[head.end() :], head.end(), cursor - head.end())
        return _in_line(True, cell, head.start("line"), cursor)
    if (line := auto(cell.splitlines(keepends=True))) is not None:
        return RankCode(line, cell, 0, cursor)
    return _in_local_code(cell, cursor)


def _in_local_code(cell: str, cursor: int) -> Place | None:
    begin = cell.rfind("\n", 0, cursor) + 1
    end = cell.find("\n", cursor)
    line = cell[begin : end if end >= 0 else len(cell)]
    if head := _PX.match(line):
        start = begin + head.end()
        return RankCode("", line[head.end() :], start, cursor - start) if cursor >= start else None
    if head := _LINE.match(line):
        return _in_line(False, cell, begin + head.end(), cursor)
    return None


def _in_line(is_cell: bool, cell: str, start: int, cursor: int) -> MeshLine | None:
    # None while the name of the magic is still being typed
    text = cell[start:cursor]
    return MeshLine(is_cell, text, start) if text else None


class Match(NamedTuple):
    """A completion: text for what stands between two offsets of the cell."""

    text: str
    start: int
    end: int
    kind: str


class Words:
    """Completes lines; `variables` are those that a command may move: of here, or of ranks."""

    def __init__(self, meshes: Meshes, variables: Callable[[str], Sequence[Word]]) -> None:
        self._meshes = meshes
        self._variables = variables

    def complete(self, place: MeshLine) -> list[Match]:
        """Return completions of the last word before the cursor."""
        typed = place.text.split(" ")
        before, word = [each for each in typed[:-1] if each], typed[-1]
        end = place.start + len(place.text)
        if place.text[:1] != " ":  # `%mesh?`
            return []
        return [
            Match(text, end - len(word), end, kind)
            for text, kind in dict(self._words(place.is_cell, before, word)).items()
            if text.startswith(word)
        ]

    def _words(self, is_cell: bool, before: Sequence[str], word: str) -> Iterator[Word]:
        if is_cell:
            yield from self._of_parser(options.CELL, before, word)
        elif not before:
            yield from ((name, "magic") for name in commands.COMMANDS)
        elif before[0] in commands.COMMANDS:
            yield from self._variables(before[0])
            parser = commands.COMMANDS[before[0]].parser
            yield from self._of_parser(parser, before[1:], word)

    def _of_parser(
        self, parser: options.Parser, before: Sequence[str], word: str
    ) -> Iterator[Word]:
        known = parser._option_string_actions
        asking = known.get(before[-1]) if before else None
        if asking is not None and asking.nargs != 0:
            yield from self._values(asking, before, word)
            return
        action = _positional(parser, before)
        if action is not None:
            yield from self._values(action, before, word)
        yield from ((name, "param") for name in known if name.startswith("--"))

    def _values(self, action: argparse.Action, before: Sequence[str], word: str) -> Iterator[Word]:
        if action.choices:
            yield from ((str(choice), "keyword") for choice in action.choices)
        elif action.nargs == argparse.REMAINDER:  # of `auto on`, what follows `%%mesh`
            yield from self._of_parser(options.CELL, before[1:], word)
        elif action.dest == "on":
            yield from (
                (name, "keyword") for name in [*NAMED, *profiles.names(), *naming.applied()]
            )
        elif action.dest == "name":
            yield from ((name, "instance") for name in self._meshes.living())
        elif action.type is options.ranks or action.dest == "targets":
            yield from self._ranks(before, word)
        elif action.dest in ("selection", "shown"):
            sign = "@" if action.dest == "selection" else ""
            yield from ((f"{sign}{name}", "instance") for name in self._meshes.living())
            yield "all", "keyword"
            yield from self._axes(before, word)
            yield from self._ranks(before, word)
        elif action.type is options.axis:
            yield from ((f"{label}=", "param") for label in ("hosts", "gpus"))

    def _axes(self, before: Sequence[str], word: str) -> Iterator[Word]:
        mesh = self._mesh(before)
        sizes = {} if mesh is None else dict(mesh.sizes)
        label, equals, place = word.partition("=")
        if not equals:
            yield from ((f"{each}=", "param") for each in sizes)
            return
        count = min(sizes.get(label, 0), MAX_PLACES)
        if match := re.fullmatch(r"(\d*):\d*", place):
            first = int(match[1] or 0)
            stops = range(first + 1, count + 1)
            yield from ((f"{label}={match[1]}:{stop}", "instance") for stop in stops)
            return
        yield from ((f"{label}={each}", "instance") for each in range(count))
        yield from ((f"{label}={each}:", "instance") for each in range(count))

    def _ranks(self, before: Sequence[str], word: str) -> Iterator[Word]:
        mesh = self._mesh(before)
        if mesh is None:
            return
        head = "".join(re.findall(r"^(?:.*,)?(?:\d+-)?", word))
        ranks = list(mesh.ranks)[:MAX_PLACES]
        yield from ((f"{head}{rank}", "instance") for rank in ranks)

    def _mesh(self, before: Sequence[str]) -> ProcMesh | None:
        named = [word[1:] for word in before if word[:1] == "@"]
        named += [word for word in before if word in self._meshes.living()]
        if "--name" in before[:-1]:
            named.append(before[before.index("--name") + 1])
        return self._meshes.glance(named[0] if named else None)


def _positional(parser: options.Parser, before: Sequence[str]) -> argparse.Action | None:
    known: dict[str, argparse.Action] = parser._option_string_actions
    count = 0
    for last, word in zip(["", *before], before, strict=False):
        is_value = last in known and known[last].nargs != 0
        count += word not in known and not is_value
    positionals: list[argparse.Action] = [
        action for action in parser._actions if not action.option_strings
    ]
    if count < len(positionals):
        return positionals[count]
    many = positionals and positionals[-1].nargs in ("*", "+", argparse.REMAINDER)
    return positionals[-1] if many else None
