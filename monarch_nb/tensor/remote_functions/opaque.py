"""`OpaqueRef`: a Python object that stays on the ranks, and goes through the program as a tensor
would.

Rule: the controller knows no more of it than that it is there. It is held by a tensor without
elements, so that it lives, fails and is freed as tensors do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch
from torch.utils import _pytree


@final
class OpaqueRef:
    """An object of a rank, for `remote` functions to return and to be given.

    Example:
        >>> @remote(propagate=lambda: OpaqueRef(None))
        ... def load(): return OpaqueRef(open("data"))         # each rank opens its own
        >>> @remote(propagate=lambda file: torch.zeros(8))
        ... def read(file): return parse(file.value.readline())
        >>> with mesh.activate():                              # doctest: +SKIP
        ...     batch = read(load())

    Name and meaning are Monarch's.
    """

    def __init__(self, value: Any) -> None:
        self.key = torch.empty(0)
        vars(self.key)["opaque"] = value

    @property
    def value(self) -> Any:
        """The object. Raises `RuntimeError` where it is not: anywhere but in a `remote` function on
        its rank."""
        try:
            return vars(self.key)["opaque"]
        except KeyError:
            raise RuntimeError(
                "what an OpaqueRef stands for is on the ranks only: give it to a remote() function"
            ) from None

    def __repr__(self) -> str:
        return f"OpaqueRef({self.key!r})"


def is_key(value: object) -> bool:
    """Return whether a tensor stands for an object: a copy of it would not."""
    return hasattr(value, "opaque")


def _flattened(ref: OpaqueRef) -> tuple[list[torch.Tensor], None]:
    return [ref.key], None


def _restored(leaves: Iterable[torch.Tensor], _: None) -> OpaqueRef:
    [key] = leaves
    found = OpaqueRef.__new__(OpaqueRef)
    found.key = key
    return found


_pytree.register_pytree_node(
    OpaqueRef,
    _flattened,
    _restored,
    serialized_type_name="monarch_nb.tensor.remote_functions.opaque.OpaqueRef",
)
