"""`ActorEnded`: why an actor is not there any more, as callers are told of it."""

from __future__ import annotations

from typing import Any

from monarch_nb.process import remote_errors


class ActorEnded(Exception):
    """Why an actor is not there any more; `text` completes "Endpoint call x() failed, ..."."""

    def __init__(
        self,
        text: str,
        cause: BaseException | None = None,
        kind: str = remote_errors.LOST,
        record: Any = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause
        self.kind = kind
        self._record = record  # of the cause, where it has been made
        self._payload: bytes | None = None

    def sealed(self) -> bytes:
        """The payload of the answer to whoever calls."""
        if self._payload is None:
            self._payload = remote_errors.pack(self.kind, self.cause, self.text, self._record)
        return self._payload

    def forget_cause(self) -> None:
        """Answers go on; the frames of the cause, and the actor in them, are let go."""
        self.sealed()
        self.cause = None
