"""Which ranks have the same: what one of them loses, the others can give back.

Nobody has to say whether a model is replicated, cut into parts or a stage of a pipeline, because it
is looked at: ranks are the same whose parameters, and what optimizers keep of them, are equal bit
by bit. Buffers are left out, as replicas may count for themselves in them.
"""

from __future__ import annotations

import hashlib
from typing import Final

import torch

from monarch_nb.elastic.contents import local_of, of_optimizer
from monarch_nb.elastic.state import State, modules_of, optimizers_of

_WORD: Final = 8  # bytes that are added up as one number


def part_of(state: State) -> int:
    """Return a number of 64 bits that ranks share whose models and optimizers are equal."""
    found = hashlib.sha256()
    for tensor in _tensors(state):
        found.update(f"{tuple(tensor.shape)} {tensor.dtype} {_sum(tensor)}\n".encode())
    return int.from_bytes(found.digest()[:_WORD], "big", signed=True)


def _tensors(state: State) -> list[torch.Tensor]:
    parameters = {
        id(each): local_of(each)
        for module in modules_of(state).values()
        for each in module.parameters()
    }
    kept = [each for one in optimizers_of(state).values() for each in of_optimizer(one).tensors]
    return [*parameters.values(), *kept]


def _sum(tensor: torch.Tensor) -> int:
    # of its bytes as whole numbers: the same in any order, as fast as memory
    data = tensor.reshape(-1).view(torch.uint8)
    if data.storage_offset() % _WORD:
        data = data.clone()
    whole = len(data) - len(data) % _WORD
    return int(data[:whole].view(torch.int64).sum().item()) + int(data[whole:].sum().item())
