"""Local tensors on their way to ranks.

Rule: nobody else may change what is sent later, nor keep alive what was lent on arrival; so it is
copied at both ends.
"""

from __future__ import annotations

import torch


def as_it_is(value: torch.Tensor) -> torch.Tensor:
    """A copy, contiguous: it is sent later, and its owner may change it before."""
    return value.detach().clone(memory_format=torch.contiguous_format)


def own_copy(value: torch.Tensor, device: str) -> torch.Tensor:
    """On a rank: memory of its own, as what came is lent."""
    return value.clone() if device == "cpu" else value.to(device)
