"""A state on its way from a process that has it to one that has not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from monarch_nb.core.wire import pickling
from monarch_nb.elastic.contents import Contents, Description, Packed
from monarch_nb.process.futures.future import Future
from monarch_nb.services.transfer.tensors import receive_from, send_to

TAG: Final = 0x6D6E6265
"""Of tensors that are a state's: nobody else uses it."""
MOVE_S: Final = 600.0
_AT_ONCE: Final = 32
"""Tensors that are under way."""


def send(found: Contents, process: int) -> None:
    """Send all of a state; wait until it is there. Raises as `send_tensor`."""
    every = [_as_tensor(found.description), *found.tensors]
    _wait_for_all(send_to(process, each, TAG, MOVE_S) for each in every)


def receive(process: int, prepare: Callable[[Description], list[torch.Tensor]]) -> Description:
    """Receive a state into the tensors that `prepare` returns for its description."""
    description = _description(receive_from(process, None, TAG, MOVE_S).get())
    tensors = prepare(description)
    _wait_for_all(receive_from(process, each, TAG, MOVE_S) for each in tensors)
    return description


def _wait_for_all(begun: Iterator[Future[Any]]) -> None:
    under_way: deque[Future[Any]] = deque()
    for each in begun:
        under_way.append(each)
        if len(under_way) == _AT_ONCE:
            under_way.popleft().get()
    for each in under_way:
        each.get()


def begin_to_send(found: Packed, process: int, tag: int, limit_s: float) -> list[Future[None]]:
    """Begin to send a copy; the futures raise as those of `send_tensor`."""
    every = [_as_tensor(found.description), found.data]
    return [send_to(process, each, tag, limit_s) for each in every]


def send_end(process: int, tag: int) -> None:
    """Say that no more copies come. Waits for nothing."""
    send_to(process, torch.empty(0, dtype=torch.uint8), tag, MOVE_S)


def receive_copy(process: int, tag: int) -> Packed | None:
    """Receive a copy; None: no more come."""
    data: torch.Tensor = receive_from(process, None, tag, MOVE_S).get()
    if not len(data):
        return None
    return Packed(_description(data), receive_from(process, None, tag, MOVE_S).get())


def _as_tensor(description: Description) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(pickling.dumps(description), dtype=np.uint8).copy())


def _description(data: torch.Tensor) -> Description:
    found: Description = pickling.loads(data.numpy().tobytes())
    return found
