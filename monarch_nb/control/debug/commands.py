"""What a line typed at a debugger's prompt means: a word for the mesh, or a command for pdb.

There are two levels. At a rank nearly everything is pdb's; off the ranks (`detach`) the words are
those of Monarch's debugger (its grammar: `cast ACTOR ranks(dim=1, other=(0,2)) COMMAND`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from monarch_nb.core.shape.selection import SelectionError

RANK_HELP: Final = """\
At a rank everything of pdb's works (help shows it). Of the mesh:
  ranks                 who is stopped where
  rank 3                go to the prompt of rank 3 (also: attach [ACTOR] 3)
  cast 0-2 COMMAND      send a command to several: cast all n, cast gpus=0:2 p loss
  where*                the stacks of all ranks
  c                     this rank goes on
  continue              all go on
  detach                leave the rank, which stays stopped"""
MESH_HELP: Final = """\
  list                  who is stopped where (also: l, ranks)
  attach [ACTOR] 3      go to the prompt of rank 3 (also: a 3, rank 3)
  cast 0-2 COMMAND      send a command of pdb's to several; as in Monarch too:
                        cast ACTOR ranks(gpus=0:2) COMMAND
  where*                the stacks of all ranks
  continue              clear every breakpoint of pdb's, and all go on (also: c)
  quit                  close this prompt; ranks stay stopped (also: q)"""

_AXIS: Final = re.compile(r"([A-Za-z_]\w*)=[0-9:]+")
_MONARCH_CAST: Final = re.compile(
    r"(?:(?P<actor>[^\s(]+)\s+)?ranks\((?P<places>(?:[^()]|\([^()]*\))*)\)\s*(?P<command>.*)",
    re.DOTALL,
)
_PLACE: Final = re.compile(r"([A-Za-z_]\w*)\s*=\s*(\([^()]*\)|[^,()]+)")
_ATTACHED: Final = re.compile(r"(?:[A-Za-z_]\w*\s+)?[0-9]+")  # as in Monarch: trainer 3
_RANGE: Final = re.compile(r"([0-9]{,18})(?::([0-9]{,18})(?::([0-9]{,18}))?)?")


class Said(NamedTuple):
    """A word of the mesh's; `rest` is what follows it. The word "pdb" is a command for the rank,
    "wrong" what nobody understands."""

    word: str
    rest: str = ""


class Cast(NamedTuple):
    """A command for several ranks: selected by `words` as in `%%mesh`, or by Monarch's `places`;
    `actor` names the actor mesh that is meant, if one is."""

    words: tuple[str, ...]
    places: str
    actor: str
    command: str


def at_rank(line: str) -> Said:
    """Read a line that was typed at the prompt of a rank.

    Example:
        >>> at_rank("rank 3"), at_rank("rank"), at_rank("continue")
        (Said(word='rank', rest='3'), Said(word='pdb', rest='rank'), Said(word='continue', rest=''))
    """
    word, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    if word in ("ranks", "where*", "continue", "detach") and not rest:
        return Said(word)
    if word == "attach" and _ATTACHED.fullmatch(rest):
        return Said("rank", rest)
    if (word == "rank" and rest.isdecimal()) or (word == "cast" and rest and rest[0] not in "=."):
        return Said(word, rest)
    if word in ("help", "h", "?") and not rest:
        return Said("help")
    return Said("pdb", line)


def at_mesh(line: str) -> Said:
    """Read a line that was typed off the ranks.

    Example:
        >>> at_mesh("attach trainer 3")
        Said(word='rank', rest='trainer 3')
    """
    word, _, rest = line.strip().partition(" ")
    names = {
        "l": "ranks", "list": "ranks", "ranks": "ranks", "a": "rank", "attach": "rank",
        "rank": "rank", "cast": "cast", "where*": "where*", "c": "continue",
        "continue": "continue", "q": "quit", "quit": "quit", "h": "help", "help": "help",
        "?": "help", "": "",
    }  # fmt: skip
    return Said(names[word], rest.strip()) if word in names else Said("wrong", line.strip())


def read_cast(text: str, axes: Sequence[str]) -> Cast:
    """Read what follows `cast`. `axes` are those of the mesh: `x=1` is a place on the axis x, or
    else a statement. Raises `SelectionError` where no command follows.

    Example:
        >>> read_cast("gpus=0:2 hosts=0 p loss", ["hosts", "gpus"])
        Cast(words=('gpus=0:2', 'hosts=0'), places='', actor='', command='p loss')
        >>> read_cast("trainer ranks(gpus=(0,2)) n", ["gpus"]).places
        'gpus=(0,2)'
    """
    if match := _MONARCH_CAST.fullmatch(text):
        actor, places = match["actor"] or "", match["places"].strip()
        return Cast((), places, actor, _command(match["command"]))
    words = text.split(" ")
    count = 1
    while count < len(words) and (found := _AXIS.fullmatch(words[count])) and found[1] in axes:
        count += 1
    if text.startswith("["):  # [0, 2] n
        head, _, rest = text.partition("]")
        return Cast((f"{head}]".replace(" ", ""),), "", "", _command(rest))
    return Cast(tuple(words[:count]), "", "", _command(" ".join(words[count:])))


def _command(text: str) -> str:
    if not text.strip():
        raise SelectionError("cast needs a command behind the ranks. Type: cast 0-2 n")
    return text.strip()


def ranks_at(places: str, sizes: Mapping[str, int]) -> list[int]:
    """Return the ranks that Monarch's `ranks(...)` names: `1`, `1,4`, `0:4:2`, or `dim=1,
    other=(0,2)`. Raises `SelectionError`.

    Example:
        >>> ranks_at("gpus=(0,3)", {"hosts": 2, "gpus": 4})
        [0, 3, 4, 7]
    """
    total = 1
    for size in sizes.values():
        total *= size
    if "=" not in places:
        return _numbers(places, total)
    wanted = {label: text.strip().strip("()") for label, text in _PLACE.findall(places)}
    if unknown := wanted.keys() - sizes.keys():
        named = ", ".join(f"{label}={size}" for label, size in sizes.items())
        raise SelectionError(f"the mesh has no axis {min(unknown)!r}; its axes are {named}")
    chosen = [
        set(_numbers(wanted[label], size)) if label in wanted else set(range(size))
        for label, size in sizes.items()
    ]
    points = product(*(range(size) for size in sizes.values()))
    return [
        rank
        for rank, point in enumerate(points)
        if all(place in allowed for place, allowed in zip(point, chosen, strict=True))
    ]


def _numbers(text: str, size: int) -> list[int]:
    found: list[int] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or not piece.strip():
            raise SelectionError(f"ranks({text}) names no ranks. Type: ranks(0:2) or ranks(0,2)")
        first, last, step = match.groups()
        begin = int(first or 0)
        end = begin + 1 if last is None else int(last or size)
        places = range(begin, end, int(step or 1) or 1)
        if places and places[-1] >= size:  # before they are made: a slip could fill the memory
            missing = next(place for place in places if place >= size)
            raise SelectionError(f"ranks({text}): no place {missing}; the last is {size - 1}")
        found += places
    return found
