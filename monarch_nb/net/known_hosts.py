"""The workers that have a key of their own: which key each address must show, in `known_hosts`.

Rules: CURVE wants the key of who is dialled beforehand, so no key is ever learned from the network:
a person gives it. An address that is not here must show the user's own key. The file is
text of mode 0600, a line each: address, public key, since when. What makes no sense there is
refused, never skipped.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from zmq.utils import z85

from monarch_nb.errors import AuthError
from monarch_nb.net import keys
from monarch_nb.net.keys import KeyPair
from monarch_nb.net.private import read_private, write_new

KNOWN: Final = "known_hosts"
_LOCK: Final = "known_hosts.lock"


class KnownHost(NamedTuple):
    """A worker whose key a person has given. `since`: a date and time, in UTC."""

    address: str
    key: bytes
    since: str


class Trust(NamedTuple):
    """Who dials, and which key each worker must show: its own if that is known, else the same."""

    pair: KeyPair
    known: Mapping[str, KnownHost]

    @staticmethod
    def of(folder: Path | None) -> Trust:
        """Read it from a folder of keys. Raises as `identity` and `known_hosts`."""
        return Trust(keys.identity(folder), known_hosts(folder))

    def key_at(self, address: str) -> bytes:
        known = self.known.get(address)
        return self.pair.public if known is None else known.key

    def advice(self, address: str) -> str:
        """Say what to do where another key is shown than the one that must be."""
        known = self.known.get(address)
        if known is None:
            return (
                f"It must have your own key, {fingerprint(self.pair.public)}; if it has one of its "
                f"own, type there: monarch-nb hosts key, and here: monarch-nb hosts pin {address}"
            )
        return (
            f"The key known for it since {known.since} is {fingerprint(known.key)}; if it was "
            f"changed on purpose, type: monarch-nb hosts forget {address}"
        )


def fingerprint(key: bytes) -> str:
    """Return what people compare of a public key, in the form of ssh's."""
    digest = hashlib.sha256(z85.decode(key)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def known_hosts(folder: Path | None = None) -> Mapping[str, KnownHost]:
    """Return them by their addresses. Raises `AuthError` for a file that others may touch, or that
    is broken."""
    path = (folder or keys.key_folder()) / KNOWN
    if not path.is_symlink() and not path.exists():
        return {}
    found: dict[str, KnownHost] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.split()
        if len(words) != len(KnownHost._fields) or not _is_key(words[1]) or words[0] in found:
            raise AuthError(
                f"line {number} of {path} is no known host (address, key, since when): remove that "
                "line, and type: monarch-nb hosts pin ADDRESS"
            )
        found[words[0]] = KnownHost(words[0], words[1].encode(), words[2])
    return found


def pin(address: str, key: str, folder: Path | None = None) -> KnownHost:
    """Have an address show this key from now on. Raises `AuthError` where it has another one."""
    if not _is_key(key):
        raise AuthError("this is no public key. Type on the worker's host: monarch-nb hosts key")
    with _changing(folder) as known:
        before = known.get(address)
        if before is not None and before.key != key.encode():
            raise AuthError(
                f"{address} is known with another key, {fingerprint(before.key)}, since "
                f"{before.since}. Type: monarch-nb hosts forget {address}"
            )
        if before is not None:
            return before
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        known[address] = KnownHost(address, key.encode(), now)
        return known[address]


def forget(address: str, folder: Path | None = None) -> KnownHost:
    """Know the key of an address no more: it must show the user's own. Raises `AuthError` where
    none is known."""
    with _changing(folder) as known:
        if address not in known:
            raise AuthError(f"no key is known for {address}. Type: monarch-nb hosts")
        return known.pop(address)


@contextlib.contextmanager
def _changing(folder: Path | None) -> Iterator[dict[str, KnownHost]]:
    # one process at a time; who reads meanwhile finds a whole file
    keys.identity(folder)  # the folder is there, and is ours
    place = folder or keys.key_folder()
    lock = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = known_hosts(folder)
        known = dict(before)
        yield known
        if known != before:
            draft = place / f"{KNOWN}.new"
            draft.unlink(missing_ok=True)  # of a process that was killed: the lock is ours
            text = (f"{host.address} {host.key.decode()} {host.since}\n" for host in known.values())
            write_new(draft, "".join(text))
            draft.replace(place / KNOWN)
    finally:
        os.close(lock)


def _text(path: Path) -> str:
    try:
        return read_private(path)
    except UnicodeDecodeError:
        raise AuthError(
            f"{path} is not text. Remove it, and pin its hosts again: monarch-nb hosts pin ADDRESS"
        ) from None


def _is_key(text: str) -> bool:
    try:
        return len(text) == keys.KEY_CHARACTERS and len(z85.decode(text.encode("ascii"))) == 32
    except (ValueError, KeyError, OverflowError, struct.error):
        return False
