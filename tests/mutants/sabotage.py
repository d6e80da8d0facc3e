"""A sabotage: one line of code that keeps a promise, and who has to notice that it does not."""

from typing import NamedTuple


class Sabotage(NamedTuple):
    """`old`, which stands once in `file`, becomes `new`; one of `tests`, as pytest names them, is
    to fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: str
