"""Encrypted records of a stream between two hosts. Pure: bytes in, bytes out.

Each direction of each connection has a key of its own, so a nonce is simply the number of the
record: none is ever used twice with a key. AES-GCM says whether a record is the next one of who
knows the secret of the link; anything else ends the connection.

    length of what follows u32 | AES-128-GCM of the body, with its tag

Long bodies are encrypted out of the memory in which they lie, and decrypted into the one where they
shall be: neither end copies them.
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
_FRAMING_BYTES: Final = _LENGTH.size + _TAG_BYTES
_LONGEST: Final = BODY_BYTES + _FRAMING_BYTES
_READ_BYTES: Final = 1 << 16  # of what follows a record; more would have to be moved


class Sealer:
    """Makes the records of one direction of one connection, each in the place of the last."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._count = 0
        self._body = room_for(BODY_BYTES)
        self._records = room_for(2 * _LONGEST)

    def seal(self, *parts: bytes | memoryview, behind: memoryview | None = None) -> memoryview:
        """Return a record of these bytes as it goes onto the stream, and one of what is `behind`
        it; good until the next."""
        end = 0
        for part in parts:
            begin, end = end, end + len(part)
            self._body[begin:end] = part
        end = self._seal(0, self._body[:end])
        if behind is not None:
            end = self._seal(end, behind)
        return self._records[:end]

    def _seal(self, at: int, body: memoryview) -> int:
        # where the record of this body ends
        size = len(body) + _TAG_BYTES
        _LENGTH.pack_into(self._records, at, size)
        begin = at + _LENGTH.size
        nonce, end = _nonce(self._count), begin + size
        self._cipher.encrypt_into(nonce, body, None, self._records[begin:end])
        self._count += 1
        return end


class RecordReader:
    """Cuts what comes into records and opens them: receive into `room`, then `take`."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._count = 0
        self._kept = room_for(_LONGEST + _READ_BYTES)
        self._filled = 0
        self._body = room_for(BODY_BYTES)
        self._target: memoryview | None = None

    @property
    def room(self) -> memoryview:
        """Where to receive: the rest of a record that has begun, else a little."""
        end = self._filled + _READ_BYTES
        if self._filled > _LENGTH.size:
            end = _LENGTH.size + self._size_at(0)
        return self._kept[self._filled : end]

    def open_into(self, target: memoryview) -> None:
        """Have the next body, which must be as long, put there."""
        self._target = target

    def take(self, count: int) -> Iterator[memoryview]:
        """Iterate over the bodies that are whole now, each of which is good until the next.

        Raises `RemoteProtocolError` for what is none.
        """
        self._filled += count
        at = 0
        while self._filled - at > _LENGTH.size:
            begin = at + _LENGTH.size
            end = begin + self._size_at(at)
            if end > self._filled:
                break
            yield self._open(self._kept[begin:end])
            at = end
        left = self._filled - at
        if at:
            self._kept[:left] = self._kept[at : self._filled]
            self._filled = left

    def _size_at(self, at: int) -> int:
        size: int = _LENGTH.unpack_from(self._kept, at)[0]
        if not _TAG_BYTES <= size <= BODY_BYTES + _TAG_BYTES:
            raise RemoteProtocolError(f"a record of {size} bytes")
        return size

    def _open(self, sealed: memoryview) -> memoryview:
        body, self._target = self._target, None
        size = len(sealed) - _TAG_BYTES
        if body is None:
            body = self._body[:size]
        elif len(body) != size:
            raise RemoteProtocolError(f"a body of {size} bytes in place of one of {len(body)}")
        try:
            self._cipher.decrypt_into(_nonce(self._count), sealed, None, body)
        except InvalidTag:
            raise RemoteProtocolError("a record of somebody without the key") from None
        self._count += 1
        return body


def _nonce(count: int) -> bytes:
    return count.to_bytes(_NONCE_BYTES, "little")
