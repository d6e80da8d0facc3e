"""A user's CURVE identity: one key pair in a private file, and the list of keys that are let in.

Rule: a key file is made with `O_EXCL|O_NOFOLLOW` and mode 0600, and refused when its owner or mode
is any other. Keys are never on a command line or in the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq

from monarch_nb.errors import AuthError
from monarch_nb.net.private import check_private, read_private

IDENTITY: Final = "identity.json"
AUTHORIZED: Final = "authorized_keys"
KEY_CHARACTERS: Final = 40  # of Z85


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, Z85 text."""

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def new() -> KeyPair:
        return KeyPair(*zmq.curve_keypair())


def key_folder() -> Path:
    """Return `$MONARCH_NB_HOME`, or `~/.monarch_nb`."""
    return Path(os.environ.get("MONARCH_NB_HOME") or Path.home() / ".monarch_nb")


def identity(folder: Path | None = None) -> KeyPair:
    """Return this user's key pair, made at first use. Raises `AuthError` if others can read it."""
    place = folder or key_folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(place)
    path = place / IDENTITY
    if not path.exists():
        _create(path)
    return _pair(path)


def allowed(folder: Path | None = None) -> frozenset[bytes]:
    """Public keys that may connect: the user's own, and a line each in `authorized_keys`."""
    place = folder or key_folder()
    keys = {identity(place).public}
    path = place / AUTHORIZED
    if path.exists():
        # the first word of a line: keys are text that may have a # in it, comments come behind
        words = (line.split()[0] for line in _text(path).splitlines() if line.strip())
        keys.update(word.encode() for word in words if len(word) == KEY_CHARACTERS)
    return frozenset(keys)


def _pair(path: Path) -> KeyPair:
    try:
        record = json.loads(_text(path))
        return KeyPair(record["public"].encode("ascii"), record["secret"].encode("ascii"))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise AuthError(
            f"{path} is no key pair. Remove it, and a new one is made; hosts that let in the old "
            "one need the new one, too"
        ) from None


def _text(path: Path) -> str:
    try:
        return read_private(path)
    except UnicodeDecodeError:
        raise AuthError(f"{path} is not text. Remove it, or put a copy of it there") from None


def _create(path: Path) -> None:
    # whole or not at all: several processes may do so at the same time, also on hosts that share
    # the folder, where processes have the same numbers
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    pair = KeyPair.new()
    with os.fdopen(fd, "w") as file:
        json.dump({"public": pair.public.decode(), "secret": pair.secret.decode()}, file)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
