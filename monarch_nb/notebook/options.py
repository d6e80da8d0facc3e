"""How options of `%mesh` and `%%mesh` are read.

Rule of the file: text in, options out; nothing here knows a mesh. A wrong word is one line that
ends with what to type instead. The parsers are argparse through IPython's magic arguments, so
quotes work as in other magics.
"""

from __future__ import annotations

import argparse
import builtins
import dataclasses
import difflib
import keyword
import re
import shlex
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from IPython.core.magic_arguments import MagicArgumentParser

from monarch_nb.core.shape.selection import SelectionError, read_ranks
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.layouts.layout import FOLD, KINDS, Layout

_Parser: Any = MagicArgumentParser  # IPython ships incomplete types

COMMANDS: Final = (
    "up", "down", "list", "use", "show", "status", "scale", "heal", "restart", "keep", "attach",
    "jobs", "hosts", "script", "shell", "doctor", "put", "get", "vars", "run", "replay", "auto",
    "logs", "errors", "watch", "interrupt", "stacks", "debug", "pm", "pdb", "clear", "debugger",
    "collectives", "regroup",
)  # fmt: skip
"""What may follow `%mesh`; see `commands`."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_AXIS = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


_OUR_WORDS: Final = (
    (r"^argument (-\S+):", r"\1"),
    (r"^argument \S+: ", ""),  # what has no dashes is known by its place
    (r"^unrecognized arguments:", "does not know"),
    (r"^the following arguments are required:", "needs"),
    (r"expected (one|at least one) argument$", "needs a value"),
    (r"^invalid choice: ('.*') \(choose from .*\)$", r"does not know \1"),
)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Of a cell or a script: `selection` on the mesh `name`, `out` the variable of its handle."""

    selection: Sequence[str]
    name: str | None
    block: bool
    out: str | None
    timeout: float | None
    progress_after: float | None
    layout: Layout
    local: bool
    fail_fast: bool


class Parser(_Parser):  # type: ignore[misc]  # see there
    """Errors become one line with an example."""

    def __init__(self, command: str, example: str) -> None:
        super().__init__(command)
        self.allow_abbrev = False
        self.example = example

    def own(self, words: list[str]) -> list[str]:
        """Return those of the words in which an unknown option is a mistake."""
        return words

    def error(self, message: str) -> NoReturn:
        """Raise `MagicError`. argparse's own words are turned into ours."""
        for theirs, ours in _OUR_WORDS:
            message = re.sub(theirs, ours, message)
        end = "" if message.endswith("?") else "."
        raise MagicError(f"{self.prog}: {message}{end} Type: {self.example}")


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def new_name(text: str) -> str:
    """Return a word that is to be a variable, and that Python has no use for."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"must be a word like mesh0, not {text!r}")
    if hasattr(builtins, text):
        raise argparse.ArgumentTypeError(f"must be another word, {text} is Python's own")
    return text


def device(text: str) -> str:
    if text not in {"auto", "cpu", "cuda"}:
        raise argparse.ArgumentTypeError(f"must be auto, cpu or cuda, not {text!r}")
    return text


def axis(text: str) -> tuple[str, int]:
    """Return `gpus=4`, which `4` alone means too."""
    match = _AXIS.fullmatch(f"gpus={text}" if text.isdigit() else text)
    if match is None:
        raise argparse.ArgumentTypeError(f"does not know {text!r}; an axis is given as gpus=4")
    label, size = match.groups()
    try:
        return label, count(size)
    except argparse.ArgumentTypeError as wrong:
        raise argparse.ArgumentTypeError(f"{label}= {wrong}") from None


def ranks(text: str) -> tuple[int, ...]:
    """Return `3`, `0,2` or `0-3`."""
    try:
        return read_ranks(text)
    except SelectionError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as wrong:
        raise argparse.ArgumentTypeError(f"cannot read {text!r}: {wrong}") from None


def layout(text: str) -> Layout:
    """Return `fold`, `columns`, `tabs`, `ranks` or `rank=3`."""
    if match := re.fullmatch(r"rank=([0-9]+)", text):
        return Layout(only=int(match[1]))
    if text not in KINDS:
        raise argparse.ArgumentTypeError(
            f"does not know {text!r}; there are {', '.join(KINDS)} and rank=0"
        )
    return Layout(text)


def group_outputs(text: str) -> Layout:
    """Return the layout of ipyparallel's `type`, `order` and `engine`."""
    known = {"type": FOLD, "order": FOLD, "engine": Layout("ranks")}
    if text not in known:
        raise argparse.ArgumentTypeError(f"does not know {text!r}; there are {', '.join(known)}")
    return known[text]


def seconds(text: str) -> float:
    """Return a time of more than 0 s."""
    found = _number(text)
    if found is None or found <= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return found


def time(text: str) -> float:
    """Return `90s`, `30m`, `8h` or `2d` in seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    found = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a time like 30m, 8h or 2d, not {text!r}")
    return found


def seconds_or_never(text: str) -> float:
    """Return a time; a negative one means never."""
    found = _number(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, -1 for never, not {text!r}")
    return found


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def add_run_options(parser: Parser) -> None:
    """Add what is common to cells and scripts: where, how long, how their output is shown."""
    parser.add_argument("selection", nargs="*")
    parser.add_argument("-t", "--targets", nargs="+", default=[], metavar="RANKS")
    parser.add_argument("--name")
    parser.add_argument("-b", "--block", action="store_true", default=True)
    parser.add_argument("-a", "--noblock", action="store_false", dest="block")
    parser.add_argument("-o", "--out", type=new_name)
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS")
    parser.add_argument("--progress-after", type=seconds_or_never, metavar="SECONDS")
    parser.add_argument("--layout", type=layout, default=FOLD, metavar="LAYOUT")
    parser.add_argument("--stream", action="store_true", default=True)
    parser.add_argument("--no-stream", action="store_false", dest="stream")
    parser.add_argument("--group-outputs", dest="layout", type=group_outputs)  # as in ipyparallel
    parser.add_argument("-e", dest="layout", action="store_const", const=Layout("ranks"))
    parser.add_argument("-r", dest="layout", action="store_const", const=FOLD)


CELL = Parser("%%mesh", "%%mesh, or %%mesh gpus=0:2, or %%mesh 0,2 --name mesh0")
add_run_options(CELL)
CELL.add_argument("--local", action="store_true")
CELL.add_argument("--no-fail-fast", action="store_false", dest="fail_fast")


def parse_cell(line: str) -> RunOptions:
    if (word := "".join(line.split(maxsplit=1)[:1])) in COMMANDS:
        raise MagicError(
            f"{word!r} is a command of the line magic. Type: %mesh {line.strip()} (one %)"
        )
    return one_mesh(CELL, parse(CELL, line))


def one_mesh(parser: Parser, chosen: argparse.Namespace) -> RunOptions:
    """Return what was read, with `@name` and `--targets` taken into `name` and `selection`."""
    named = [word[1:] for word in chosen.selection if word.startswith("@")]
    selection = [word for word in chosen.selection if not word.startswith("@")]
    if chosen.name is not None:
        named.append(chosen.name)
    if len(named) > 1:
        parser.error(f"is for one mesh, not for {' and '.join(named)}")
    if chosen.targets and selection:
        parser.error("takes ranks once, by --targets or without")
    return RunOptions(
        selection or chosen.targets,
        named[0] if named else None,
        chosen.block,
        chosen.out,
        chosen.timeout,
        chosen.progress_after,
        dataclasses.replace(chosen.layout, streams=chosen.stream),
        chosen.local,
        chosen.fail_fast,
    )


def parse(parser: Parser, text: str) -> argparse.Namespace:
    """Read the options in the text. Raises `MagicError`."""
    try:
        words = shlex.split(text)
    except ValueError as unbalanced:  # quotes
        raise MagicError(f"{parser.prog}: {unbalanced}. Type: {parser.example}") from None
    for word in parser.own(words):
        if word.startswith("--") and word.partition("=")[0] not in parser._option_string_actions:
            parser.error(_unknown_option(parser, word))
    options: argparse.Namespace = parser.parse_args(words)
    return options


def _unknown_option(parser: Parser, word: str) -> str:
    known = [option for option in parser._option_string_actions if option.startswith("--")]
    close = difflib.get_close_matches(word, known, 1)
    return f"does not know {word}" + (f"; did you mean {close[0]}?" if close else "")
