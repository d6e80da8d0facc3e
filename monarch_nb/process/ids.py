"""Ids as text: of anything (`Uid`), of processes (`ProcId`), of actors (`ActorId`).

An instance has a number of 64 bits that is never used twice; a singleton has a name alone. This
file knows nothing of messages: the numbers on the wire are made in `process.py`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Final, final

_INSTANCE: Final = re.compile(r"(?:(?P<label>.+)-)?(?P<value>[0-9a-f]{16})", re.DOTALL)
_BITS: Final = 64


@final
class Uid(str):
    """A unique id as text: `label-0123456789abcdef` (an instance), or a label alone (a singleton).

    It is a `str`: it compares, hashes, sorts, pickles and prints as one. Its label is for people;
    two instances of one label are never equal.

    Example:
        >>> Uid.singleton("controller")
        'controller'
        >>> Uid.instance_from_value(255, "service")
        'service-00000000000000ff'
        >>> Uid.from_string("service-00000000000000ff").value
        255
        >>> Uid.instance("service") == Uid.instance("service")
        False
    """

    __slots__ = ()

    @staticmethod
    def instance(label: str | None = None) -> Uid:
        """Make a new one. Raises `ValueError` for an empty label."""
        return Uid.instance_from_value(random.SystemRandom().getrandbits(_BITS), label)

    @staticmethod
    def instance_from_value(value: int, label: str | None = None) -> Uid:
        """Make the instance of this number. Raises `ValueError` unless it fits 64 bits."""
        if not 0 <= value < 1 << _BITS:
            raise ValueError(f"the number of a Uid is of {_BITS} bits and not negative: {value}")
        if label == "":
            raise ValueError("the label of a Uid is not empty; leave it out instead")
        return Uid(f"{value:016x}" if label is None else f"{label}-{value:016x}")

    @staticmethod
    def singleton(label: str) -> Uid:
        """Return the only one of its name. Raises `ValueError` if that reads as an instance."""
        if not label or _INSTANCE.fullmatch(label):
            raise ValueError(
                f"{label!r} cannot name a singleton: it is empty or ends like the number of an "
                "instance; choose another name"
            )
        return Uid(label)

    @staticmethod
    def from_string(text: str) -> Uid:
        """Read what `str` of a Uid gave. Raises `ValueError` for an empty text."""
        if not text:
            raise ValueError("an empty text is no Uid")
        return Uid(text)

    @property
    def label(self) -> str | None:
        """The part for people; None for an instance without one."""
        found = _INSTANCE.fullmatch(self)
        return str(self) if found is None else found["label"]

    @property
    def value(self) -> int | None:
        """The number of an instance; None for a singleton."""
        found = _INSTANCE.fullmatch(self)
        return None if found is None else int(found["value"], 16)

    @property
    def is_singleton(self) -> bool:
        """Whether it is known by its name alone."""
        return self.value is None

    @property
    def is_instance(self) -> bool:
        """Tell whether it is one of several of its name, told apart by a number."""
        return self.value is not None


@final
class ProcId(str):
    """The id of a process as text; ids are never used twice."""

    __slots__ = ()

    @staticmethod
    def from_string(text: str) -> ProcId:
        if Uid(text).value is None:
            raise ValueError(f"{text!r} is no process id: those end with 16 hexadecimal digits")
        return ProcId(text)

    @property
    def uid(self) -> Uid:
        """The same, as the id of anything: `.uid.value` is the process's number."""
        return Uid(self)

    @property
    def label(self) -> str | None:
        """Return the part for people; None without one."""
        return self.uid.label


@dataclass(frozen=True)
class ActorId:
    """The address of an actor: `actor_name`, `label` (its spawn name) and `proc_id`."""

    actor_name: str
    label: str
    proc_id: ProcId
    port: int

    @property
    def uid(self) -> Uid:
        """The id of the spawn: the same for all actors of one mesh."""
        return Uid.instance_from_value(self.port, self.label or None)

    def __str__(self) -> str:
        return f"{self.proc_id}/{self.actor_name}"
