"""The keys under which ranks meet for process groups: to the process that owns their mesh.

A *place* is where the groups of one world meet: each generation of a mesh has one, and each run of
a script. A `torch.distributed.Store` of a rank is calls of this kind.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from monarch_nb.core.wire.messages.codec import ControlMessage, Done, Request
from monarch_nb.errors import RemoteProtocolError

LARGEST_VALUE: Final = 1 << 20


def left_key(rank: int) -> str:
    """Return the key that says that a rank has left the place."""
    return f"left-{rank}"


def check_size(value: bytes) -> None:
    """Raise `ValueError` for a value that is too large to be kept."""
    if len(value) > LARGEST_VALUE:
        raise ValueError(
            f"a value of {len(value)} bytes: in a store one has {LARGEST_VALUE} at most. Send what "
            "is larger by a collective, dist.broadcast_object_list for instance"
        )


class Blob(bytes):
    """Bytes within a message; on the wire base64."""

    def to_json(self) -> str:
        return base64.b64encode(self).decode()

    @staticmethod
    def from_json(value: object) -> Blob:
        """Read them. Raises `RemoteProtocolError` for anything else."""
        if type(value) is not str:
            raise RemoteProtocolError(f"{type(value).__name__}, not base64")
        try:
            return Blob(base64.b64decode(value, validate=True))
        except (ValueError, binascii.Error):
            raise RemoteProtocolError("text that is no base64") from None


class Found(NamedTuple):
    """The values of the keys that were asked for, in their order; none while some are missing."""

    missing: list[str]
    values: list[Blob]


class Number(NamedTuple):
    """A count, or a sum."""

    value: int


class SetKeys(Request[Done], verb="store_set"):
    place: str
    keys: list[str]
    values: list[Blob]


class AwaitKeys(Request[Found], verb="store_await"):
    """Answered when all of these keys are there, or one of `unless` is. `number`: of this wait."""

    place: str
    number: int
    keys: list[str]
    unless: list[str]


class LeaveWait(ControlMessage, verb="store_leave_wait"):
    """The sender waits no longer; the answer that is owed is a refusal."""

    place: str
    number: int


class CheckKeys(Request[Found], verb="store_check"):
    """Which of these keys are missing now."""

    place: str
    keys: list[str]


class AddTo(Request[Number], verb="store_add"):
    """Add to the number under a key, which is 0 before; answered with the sum."""

    place: str
    key: str
    amount: int


class AppendTo(Request[Done], verb="store_append"):
    place: str
    key: str
    value: Blob


class CompareAndSet(Request[Found], verb="store_compare_set"):
    """Set a key if it has the `expected` value, or is missing and that is empty. Answered with what
    it has then; with `expected` where it is missing."""

    place: str
    key: str
    expected: Blob
    desired: Blob


class DeleteKey(Request[Number], verb="store_delete"):
    """Answered with how many there were."""

    place: str
    key: str


class CountKeys(Request[Number], verb="store_count"):
    place: str


class LeavePlace(ControlMessage, verb="store_leave_place"):
    """This rank of a script is done there; when all `size` ranks are, the place is gone."""

    place: str
    rank: int
    size: int
