"""How two hosts that share a secret begin a connection: who dials says which session it is. Pure.

The secret of a session has come over CURVE (`joining.py`). From it and a random number of each end
both derive the keys of this one connection; the first record of each then proves that it knows the
secret. So a session goes on over a new connection without CURVE, and what somebody has recorded is
of no use for another.

    dialler:  magic, version u16, session 16 bytes, random 32 bytes
    listener: random 32 bytes, then records; its first says what it has received
    dialler:  records; its first says what it has received
"""

from __future__ import annotations

import os
import secrets
import struct
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.hosts.records import RecordReader, Sealer

MAGIC: Final = b"MNB2"
VERSION: Final = 2
RANDOM_BYTES: Final = 32
_SESSION_BYTES: Final = 16
_KEY_BYTES: Final = 16
_GREETING: Final = struct.Struct(f"<{len(MAGIC)}sH{_SESSION_BYTES}s{RANDOM_BYTES}s")
GREETING_BYTES: Final = _GREETING.size
_RECEIVED: Final = struct.Struct("<Q")
PROOF_BYTES: Final = 4 + _RECEIVED.size + 16
"""Of the first record of each end, on the stream."""


class Secret(NamedTuple):
    """The name of a session, which strangers may see, and its key, which both ends know."""

    session: bytes
    key: bytes

    @staticmethod
    def new() -> Secret:
        return Secret(secrets.token_bytes(_SESSION_BYTES), secrets.token_bytes(32))

    def to_text(self) -> str:
        return self.session.hex() + self.key.hex()

    @staticmethod
    def from_text(text: object) -> Secret:
        """Raises `RemoteProtocolError` for anything else than what `to_text` gave."""
        try:
            data = bytes.fromhex(str(text))
        except ValueError:
            data = b""
        if len(data) != _SESSION_BYTES + 32:
            raise RemoteProtocolError("this is no secret of a session")
        return Secret(data[:_SESSION_BYTES], data[_SESSION_BYTES:])


class Ciphers(NamedTuple):
    """Those of one end of one connection."""

    sealer: Sealer
    reader: RecordReader


def random_bytes() -> bytes:
    return os.urandom(RANDOM_BYTES)


def pack_greeting(session: bytes, random: bytes) -> bytes:
    return _GREETING.pack(MAGIC, VERSION, session, random)


def may_greet(data: bytes) -> bool:
    """Tell whether a greeting may begin so."""
    return data[: len(MAGIC)] == MAGIC[: len(data)]


def unpack_greeting(data: bytes) -> tuple[bytes, bytes]:
    """Return session and random number. Raises `RemoteProtocolError`."""
    magic, version, session, random = _GREETING.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise RemoteProtocolError(f"link {magic!r} {version} meets {MAGIC!r} {VERSION}")
    return session, random


def pack_received(received: int) -> bytes:
    """Return the body of the first record: the number of the last record that came."""
    return _RECEIVED.pack(received)


def unpack_received(body: bytes | memoryview) -> int:
    if len(body) != _RECEIVED.size:
        raise RemoteProtocolError("the first record of a connection says what has come")
    received: int = _RECEIVED.unpack(body)[0]
    return received


def ciphers(key: bytes, dialler: bytes, listener: bytes, *, dials: bool) -> Ciphers:
    """Return the ciphers of the end that dials, or of the other."""
    derived = HKDF(
        algorithm=SHA256(), length=2 * _KEY_BYTES, salt=dialler + listener, info=b"monarch_nb link"
    ).derive(key)
    there, back = derived[:_KEY_BYTES], derived[_KEY_BYTES:]
    out, come = (there, back) if dials else (back, there)
    return Ciphers(Sealer(out), RecordReader(come))
