"""The options that say where ranks run: `--on ENGINE`, what each engine takes, profiles.

Rule of the file: text in, `Wanted` out. What stands behind `--` goes to the engine as it is.
"""

from __future__ import annotations

import argparse
import difflib
import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from monarch_nb.config import Config
from monarch_nb.control import engines
from monarch_nb.control.engines import ENGINES, NAMED, UNTYPED, Engine, Wanted
from monarch_nb.control.jobs import profiles
from monarch_nb.control.jobs.kept import naming
from monarch_nb.core.shape import selection
from monarch_nb.notebook import options
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.meshes import Asked
from monarch_nb.notebook.options import Parser

MAX_RANKS: Final = 4_096  # on one machine; a slip of the finger must not fill its memory

_OF_ENGINES: Final = tuple(
    dict.fromkeys(option for engine in ENGINES.values() for option in engine.options)
)
_OF_PROFILES: Final = ("on", "hosts", "gpus", "device", *_OF_ENGINES)


class WhereParser(Parser):
    """Reads a profile in the place of its options, and keeps what is behind `--`."""

    def __init__(self, command: str, example: str) -> None:
        super().__init__(command, example)
        self.add_argument("--on", metavar="ENGINE")
        self.add_argument("--hosts", type=options.count)
        self.add_argument("--gpus", type=options.count)
        self.add_argument("--device", type=options.device, default="auto")
        for option in _OF_ENGINES:
            hidden = argparse.SUPPRESS if option in UNTYPED else None
            self.add_argument(f"--{option}", help=hidden)

    def own(self, words: list[str]) -> list[str]:
        return cut(words)[0]

    def parse_args(self, words: list[str]) -> argparse.Namespace:
        typed, behind = cut(words)
        chosen: argparse.Namespace = super().parse_args(typed)
        if chosen.on is not None and _engine(chosen.on) is None:
            theirs, theirs_behind = cut(self._profile(chosen))
            engine = super().parse_args(theirs).on
            chosen = super().parse_args([*theirs, *typed])
            chosen.on = engine
            behind = [*theirs_behind, *behind]
        chosen.words = tuple(behind)
        return chosen

    def _profile(self, chosen: argparse.Namespace) -> list[str]:
        # as words, without what was typed in another form
        try:
            words = naming.words_of(chosen.on)
        except KeyError:
            raise MagicError(_unknown(chosen.on)) from None
        except ValueError as error:
            raise MagicError(str(error)) from None
        known = [f"--{each}" for each in _OF_PROFILES]
        for word in cut(words)[0]:
            option = word.partition("=")[0]
            if option not in known:
                close = difflib.get_close_matches(option, known, 1)
                hint = f"; did you mean {close[0][2:]}?" if close else ""
                where = f"profile {chosen.on!r} of {profiles.file()}"
                raise MagicError(f"{where} has the unknown option {option[2:]}{hint}")
        has_ranks = bool(getattr(chosen, "axes", None))
        return [each for each in words if not (has_ranks and each.startswith("--gpus="))]


class _UpParser(WhereParser):
    # Where no hosts are named, those of the setting are meant
    def parse_args(self, words: list[str]) -> argparse.Namespace:
        typed, behind = cut(words)
        if not any(word.partition("=")[0] == "--on" for word in typed):
            theirs, theirs_behind = cut(_setting())
            words = [*theirs, *typed, "--", *theirs_behind, *behind]
        return super().parse_args(words)


def _setting() -> list[str]:
    said = Config.from_environ().mesh_on
    try:
        return shlex.split(said)
    except ValueError as unbalanced:  # quotes
        raise MagicError(f"MONARCH_NB_MESH_ON={said!r}: {unbalanced}") from None


UP: Final = _UpParser("%mesh up", "%mesh up --gpus 4")
UP.add_argument("--name", type=options.new_name)
UP.add_argument("--keep", type=options.time, metavar="TIME")
UP.add_argument("axes", nargs="*", type=options.axis, metavar="axis=size")
_THERE: Final = UP.add_mutually_exclusive_group()
for _choice in ("replace", "new"):
    _THERE.add_argument(f"--{_choice}", dest="there", action="store_const", const=_choice)
UP.set_defaults(there="keep")


def asked(chosen: argparse.Namespace) -> Asked:
    """Return what `%mesh up` asks for, by the options that `UP` has read. Raises `MagicError`."""
    axes = sizes(UP, chosen.axes, chosen.gpus)
    hosts, per_host = wanted(UP, chosen, axes)
    return Asked(tuple(per_host.items()), chosen.device, hosts)


def sizes(parser: Parser, given: Iterable[tuple[str, int]], gpus: int | None) -> dict[str, int]:
    """Return the axes, in the order in which they are to be; of `--gpus` last."""
    found: dict[str, int] = {}
    for label, size in [*given, *([] if gpus is None else [("gpus", gpus)])]:
        if label in found:
            parser.error(f"{label} is given twice")
        found[label] = size
    return found


def wanted(
    parser: Parser, chosen: argparse.Namespace, axes: dict[str, int]
) -> tuple[Wanted | None, dict[str, int]]:
    """Return the hosts to ask for, None for this machine; and the axes of each host."""
    options_given = ((name, getattr(chosen, name.replace("-", "_"))) for name in _OF_ENGINES)
    given = {name: value for name, value in options_given if value is not None}
    if chosen.on is None:
        beside = ["--hosts"] if chosen.hosts is not None else [f"--{name}" for name in given]
        if beside or chosen.words:
            parser.error(f"takes {beside[0] if beside else '--'} with --on ENGINE only")
        _check_count(parser, axes, 1, MAX_RANKS)
        return None, axes
    word, _, places = chosen.on.partition(":")
    engine = _engine(chosen.on)
    if engine is None:  # of a profile
        raise MagicError(_unknown(word))
    names = tuple(filter(None, places.split(",")))
    per_host = {label: size for label, size in axes.items() if label != "hosts"}
    hosts = _hosts(engine, word, names, chosen.hosts, axes.get("hosts"))
    _check(engine, word, chosen, given)
    _check_count(parser, per_host, hosts, MAX_RANKS if engine.is_here else selection.MAX_RANK)
    gpus = 0 if chosen.device == "cpu" else math.prod(per_host.values())
    return Wanted(word, names, hosts, gpus, tuple(given.items()), chosen.words), per_host


def _hosts(engine: Engine, word: str, names: Sequence[str], *counts: int | None) -> int:
    told = [each for each in counts if each is not None]
    try:
        engines.check_places(word, names)
    except ValueError as error:
        raise MagicError(f"{error}. Type: {engine.example}") from None
    told += [len(names)] if names else []
    if len(set(told)) > 1:
        raise MagicError(f"How many hosts? Both {told[0]} and {told[-1]} were asked for")
    return told[0] if told else 1


def _check(engine: Engine, word: str, chosen: argparse.Namespace, given: Iterable[str]) -> None:
    try:
        engines.check(word, given, chosen.words)
    except ValueError as error:
        raise MagicError(f"{error}. Type: {engine.example}") from None
    if chosen.device == "cuda" and not engine.is_here:
        raise MagicError(
            "--device cuda is for ranks of this machine: on other hosts each rank sees all GPUs, "
            "and has its own as `device`"
        )


def _check_count(parser: Parser, axes: dict[str, int], hosts: int, limit: int) -> None:
    if not axes:
        parser.error("needs to know how many ranks" + (" each host has" if hosts > 1 else ""))
    if (ranks := math.prod(axes.values()) * hosts) > limit:
        parser.error(f"starts {limit} ranks at most, not {ranks}")


def _engine(on: str) -> Engine | None:
    return ENGINES.get(on.partition(":")[0])


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word, [*NAMED, *profiles.names()], 1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"There is no engine or profile {word!r}. {hint}{naming.known()}"


def cut(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before `--`, and those behind it."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]
