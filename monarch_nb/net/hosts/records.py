"""Encrypted records of a stream between two hosts. Pure: bytes in, bytes out.

Each direction of each connection has a key of its own, so a nonce is simply the number of the
record: none is ever used twice with a key. AES-GCM says whether a record is the next one of who
knows the secret of the link; anything else ends the connection.

    length of what follows u32 | AES-128-GCM of the body, with its tag
"""

from __future__ import annotations

import struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from monarch_nb.errors import RemoteProtocolError

BODY_BYTES: Final = 1 << 20
"""Longest body of a record."""
_LENGTH: Final = struct.Struct("<I")
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_LONGEST: Final = _LENGTH.size + BODY_BYTES + _TAG_BYTES


class Sealer:
    """Makes the records of one direction of one connection."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._count = 0

    def seal(self, body: bytes) -> memoryview:
        """Return a record, as it goes onto the stream."""
        size = len(body) + _TAG_BYTES
        record = memoryview(bytearray(_LENGTH.size + size))
        _LENGTH.pack_into(record, 0, size)
        self._cipher.encrypt_into(_nonce(self._count), body, None, record[_LENGTH.size :])
        self._count += 1
        return record


class RecordReader:
    """Cuts what comes into records and opens them: receive into `room`, then `take`."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._count = 0
        self._kept = memoryview(bytearray(2 * _LONGEST))
        self._filled = 0

    @property
    def room(self) -> memoryview:
        return self._kept[self._filled :]

    def take(self, count: int) -> list[bytes]:
        """Return the bodies that are whole now. Raises `RemoteProtocolError` for what is none."""
        self._filled += count
        found, at = [], 0
        while self._filled - at > _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._kept, at)
            if not _TAG_BYTES <= size <= BODY_BYTES + _TAG_BYTES:
                raise RemoteProtocolError(f"a record of {size} bytes")
            begin, at_next = at + _LENGTH.size, at + _LENGTH.size + size
            if at_next > self._filled:
                break
            found.append(self._open(self._kept[begin:at_next]))
            at = at_next
        if at:
            left = self._filled - at
            self._kept[:left] = bytes(self._kept[at : self._filled])
            self._filled = left
        return found

    def _open(self, sealed: memoryview) -> bytes:
        try:
            body = self._cipher.decrypt(_nonce(self._count), sealed, None)
        except InvalidTag:
            raise RemoteProtocolError("a record of somebody without the key") from None
        self._count += 1
        return body


def _nonce(count: int) -> bytes:
    return count.to_bytes(_NONCE_BYTES, "little")
