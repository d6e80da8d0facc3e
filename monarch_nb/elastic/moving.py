"""A state on its way from a process that has it to one that has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from monarch_nb.core.wire import pickling
from monarch_nb.elastic.contents import Contents, Description
from monarch_nb.services.transfer.tensors import receive_from, send_to

TAG: Final = 0x6D6E6265
"""Of tensors that are a state's: nobody else uses it."""
MOVE_S: Final = 600.0


def send(found: Contents, process: int, tag: int = TAG) -> None:
    """Send all of a state; wait until it is there. Raises as `send_tensor`."""
    data = np.frombuffer(pickling.dumps(found.description), dtype=np.uint8).copy()
    every = [torch.from_numpy(data), *found.tensors]
    sent = [send_to(process, each, tag, MOVE_S) for each in every]
    for each in sent:
        each.get()


def receive(
    process: int, prepare: Callable[[Description], list[torch.Tensor]], tag: int = TAG
) -> Description:
    """Receive a state into the tensors that `prepare` returns for its description."""
    data: torch.Tensor = receive_from(process, None, tag, MOVE_S).get()
    description: Description = pickling.loads(data.numpy().tobytes())
    coming = [receive_from(process, each, tag, MOVE_S) for each in prepare(description)]
    for each in coming:
        each.get()
    return description
