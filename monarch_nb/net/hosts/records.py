"""Encrypted records of a stream between two hosts. Pure: bytes in, bytes out.

Each direction of each connection has a key of its own, so a nonce is simply the number of the
record: none is ever used twice with a key. AES-GCM says whether a record is the next one of who
knows the secret of the link; anything else ends the connection.

    length of what follows u32 | AES-128-GCM of the body, with its tag
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.streams import room_for

BODY_BYTES: Final = 1 << 20
"""Longest body of a record."""
_LENGTH: Final = struct.Struct("<I")
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_LONGEST: Final = _LENGTH.size + BODY_BYTES + _TAG_BYTES


class Sealer:
    """Makes the records of one direction of one connection, each in the place of the last."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._count = 0
        self._body = room_for(BODY_BYTES)
        self._record = room_for(_LONGEST)

    def seal(self, *parts: bytes) -> memoryview:
        """Return a record of these bytes, as it goes onto the stream; it is good until the next."""
        end = 0
        for part in parts:
            begin, end = end, end + len(part)
            self._body[begin:end] = part
        size = end + _TAG_BYTES
        _LENGTH.pack_into(self._record, 0, size)
        record = self._record[: _LENGTH.size + size]
        sealed = record[_LENGTH.size :]
        self._cipher.encrypt_into(_nonce(self._count), self._body[:end], None, sealed)
        self._count += 1
        return record


class RecordReader:
    """Cuts what comes into records and opens them: receive into `room`, then `take`."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._count = 0
        self._kept = room_for(2 * _LONGEST)
        self._filled = 0
        self._body = room_for(BODY_BYTES)

    @property
    def room(self) -> memoryview:
        return self._kept[self._filled :]

    def take(self, count: int) -> Iterator[memoryview]:
        """Iterate over the bodies that are whole now, each of which is good until the next.

        Raises `RemoteProtocolError` for what is none.
        """
        self._filled += count
        at = 0
        while self._filled - at > _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._kept, at)
            if not _TAG_BYTES <= size <= BODY_BYTES + _TAG_BYTES:
                raise RemoteProtocolError(f"a record of {size} bytes")
            begin, end = at + _LENGTH.size, at + _LENGTH.size + size
            if end > self._filled:
                break
            yield self._open(self._kept[begin:end])
            at = end
        left = self._filled - at
        if at:
            self._kept[:left] = self._kept[at : self._filled]
            self._filled = left

    def _open(self, sealed: memoryview) -> memoryview:
        body = self._body[: len(sealed) - _TAG_BYTES]
        try:
            self._cipher.decrypt_into(_nonce(self._count), sealed, None, body)
        except InvalidTag:
            raise RemoteProtocolError("a record of somebody without the key") from None
        self._count += 1
        return body


def _nonce(count: int) -> bytes:
    return count.to_bytes(_NONCE_BYTES, "little")
