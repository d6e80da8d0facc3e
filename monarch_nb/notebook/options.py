"""What may be typed after `%mesh` and `%%mesh`: one parser for each command.

Rule of the file: text in, options out; nothing here knows a mesh. A wrong word is one line that
ends with what to type instead. The parsers are argparse through IPython's magic arguments, so
quotes work as in other magics.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from typing import Any, NoReturn

from IPython.core.magic_arguments import MagicArgumentParser

from monarch_nb.notebook.problems import MagicError

_Parser: Any = MagicArgumentParser  # IPython ships incomplete types

_AXIS = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Parser(_Parser):  # type: ignore[misc]
    """Errors become one line with an example."""

    def __init__(self, command: str, example: str) -> None:
        super().__init__(command)
        self.allow_abbrev = False
        self.example = example

    def error(self, message: str) -> NoReturn:
        """Raise `MagicError`. argparse's own words are turned into ours."""
        message = re.sub(r"^argument (\S+):", r"\1", message)
        message = message.replace("unrecognized arguments:", "does not know")
        message = message.replace("expected one argument", "needs a value")
        raise MagicError(f"{self.prog}: {message}. Type: {self.example}")


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def name(text: str) -> str:
    """A word that can be a variable."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"must be a word like mesh0, not {text!r}")
    return text


def axis(text: str) -> tuple[str, int]:
    """`gpus=4`."""
    match = _AXIS.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"does not know {text!r}; an axis is given as gpus=4")
    label, size = match.groups()
    try:
        return label, count(size)
    except argparse.ArgumentTypeError as wrong:
        raise argparse.ArgumentTypeError(f"{label}= {wrong}") from None


def ranks(text: str) -> tuple[int, ...]:
    """`3`, `0,2` or `0-3`."""
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise argparse.ArgumentTypeError(
                f"cannot read {text!r}; ranks are given as 3 or 0,2 or 0-3"
            )
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def _up() -> Parser:
    parser = Parser("%mesh up", "%mesh up --gpus 4")
    parser.add_argument("--gpus", type=count)
    parser.add_argument("--name", type=name)
    parser.add_argument("axes", nargs="*", type=axis, metavar="axis=size")
    return parser


def _down() -> Parser:
    parser = Parser("%mesh down", "%mesh down, or %mesh down mesh0, or %mesh down --all")
    parser.add_argument("name", nargs="?", type=name)
    parser.add_argument("--all", action="store_true")
    return parser


def _use() -> Parser:
    parser = Parser("%mesh use", "%mesh use mesh0")
    parser.add_argument("name", type=name)
    return parser


def _status() -> Parser:
    parser = Parser("%mesh status", "%mesh status, or %mesh status mesh0")
    parser.add_argument("name", nargs="?", type=name)
    return parser


def _list() -> Parser:
    return Parser("%mesh list", "%mesh list")


def _heal() -> Parser:
    parser = Parser("%mesh heal", "%mesh heal, or %mesh heal --shrink")
    parser.add_argument("name", nargs="?", type=name)
    parser.add_argument("--shrink", action="store_true")
    return parser


def _interrupt() -> Parser:
    parser = Parser("%mesh interrupt", "%mesh interrupt, or %mesh interrupt --kill 3")
    parser.add_argument("--kill", type=ranks, metavar="RANKS")
    parser.add_argument("--name", type=name)
    return parser


COMMANDS = {
    "up": _up(),
    "down": _down(),
    "list": _list(),
    "use": _use(),
    "status": _status(),
    "heal": _heal(),
    "interrupt": _interrupt(),
}

CELL = Parser("%%mesh", "%%mesh, or %%mesh gpus=0:2, or %%mesh 0,2 --name mesh0")
CELL.add_argument("selection", nargs="*")
CELL.add_argument("--name", type=name)


def parse_line(line: str) -> tuple[str, argparse.Namespace]:
    """The command of a `%mesh` line and its options; `status` for an empty line."""
    word, _, rest = line.strip().partition(" ")
    if not word:
        return "status", parse(COMMANDS["status"], "")
    if word not in COMMANDS:
        raise MagicError(_unknown(word))
    return word, parse(COMMANDS[word], rest)


def parse(parser: Parser, text: str) -> argparse.Namespace:
    """Options in the text. Raises `MagicError`."""
    try:
        words = shlex.split(text)
    except ValueError as unbalanced:  # quotes
        raise MagicError(f"{parser.prog}: {unbalanced}. Type: {parser.example}") from None
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in parser._option_string_actions:
            parser.error(_unknown_option(parser, word))
    options: argparse.Namespace = parser.parse_args(words)
    return options


def _unknown_option(parser: Parser, word: str) -> str:
    known = [option for option in parser._option_string_actions if option.startswith("--")]
    close = difflib.get_close_matches(word, known, 1)
    return f"does not know {word}" + (f"; did you mean {close[0]}?" if close else "")


def sizes(options: argparse.Namespace) -> dict[str, int]:
    """The axes of `%mesh up`, in the order in which they are to be."""
    found: dict[str, int] = {}
    given: list[tuple[str, Any]] = list(options.axes)
    if options.gpus is not None:
        given.append(("gpus", options.gpus))
    for label, size in given:
        if label in found:
            COMMANDS["up"].error(f"{label} is given twice")
        found[label] = size
    if not found:
        COMMANDS["up"].error("needs to know how many ranks")
    return found


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"Did you mean %mesh {close[0]}? " if close else ""
    return (
        f"%mesh has no command {word!r}. {hint}Commands: {', '.join(COMMANDS)}; %mesh? shows help"
    )
