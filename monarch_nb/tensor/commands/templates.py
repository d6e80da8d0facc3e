"""What the controller tells the ranks to do, as numbers.

Rule: a batch is one flat list of integers. A command is the number of a *template*, the refs of its
inputs, its scalars, and the refs of its new outputs; how many of each there are the template says.
What it does is told once (`Definition`), so a command that is issued again costs a few bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

SITE: Final = -1
"""Then a number: the line of the controller that issues what follows."""
FREE: Final = -2
"""Then a ref: nobody on the controller knows this tensor any more."""
OPEN: Final = -3
"""Then the port of an actor, without its top bit, and the ticket of a call to it: that is over."""
MAIN: Final = "main"
"""The stream of everything that is not on another."""

numbers: Final = itertools.count()
"""Of definitions."""

_DOUBLE: Final = struct.Struct("<d")
_LONG: Final = struct.Struct("<q")


class Input(NamedTuple):
    """In the arguments of a template: the tensor that a command names as its input `place`."""

    place: int


class Scalar(NamedTuple):
    """In the arguments of a template: the number that a command has as its scalar `place`."""

    place: int
    is_float: bool


class Definition(NamedTuple):
    """A template.

    `target` is the name of an operation of torch ("aten.add.Tensor"), one of our functions, or a
    function of the user's as bytes, pickled with its arguments. `args` and `kwargs` are those, with
    `Input` and `Scalar` in them. `new` says of each tensor of the result, in order, whether it is a
    new one (else it is one of the inputs); None: the result itself, whatever it is, has one ref.
    `writes` are the inputs that are changed. `shapes`, of a function of the user's, are what was
    promised of the new ones. `name` is for people. `once`: it is used by one command only. `moves`:
    how many bytes each rank sends to others, about.
    """

    number: int
    target: str | bytes | Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    inputs: int
    scalars: int
    new: tuple[bool, ...] | None
    writes: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] | None = None
    name: str = ""
    once: bool = False
    moves: int = 0

    @property
    def outputs(self) -> int:
        """How many new refs a command has."""
        return 1 if self.new is None else sum(self.new)


def bits_of(number: float) -> int:
    """Return the integer that stands for a float in a batch.

    Example:
        >>> number_of(bits_of(0.1))
        0.1
    """
    return int(_LONG.unpack(_DOUBLE.pack(number))[0])


def number_of(bits: int) -> float:
    return float(_DOUBLE.unpack(_LONG.pack(bits))[0])
