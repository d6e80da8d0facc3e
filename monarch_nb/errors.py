"""Every exception of monarch_nb, in one file.

Rules: an error says which rank, what happened, when it was last heard and what to type next; it
pickles and unpickles to an equal error; errors that are a user's own doing also subclass the
builtin that a Python programmer would catch (`TypeError`, `RuntimeError`, `TimeoutError` ...).
"""

from __future__ import annotations

from typing import Any


class MeshError(Exception):
    """Base of everything monarch_nb raises. `str(error)` is meant to be read by a person."""


class ActorError(MeshError):
    """An endpoint raised. The actor lives on.

    `exception` is the original when it survived the journey (else a stand-in that carries its type
    name and text), also set as `__cause__`; `message` says which call failed; `rank` is the rank in
    the mesh that was called, or None; `exception_formatted` is the remote traceback as text.
    The constructor's first two parameters are Monarch's.
    """

    def __init__(
        self,
        exception: BaseException | None = None,
        message: str = "A remote actor call has failed.",
        *,
        rank: int | None = None,
        traceback_text: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exception = exception
        self.message = message
        self.rank = rank
        self.record: Any = None  # the traceback as data, see core/errors/records.py
        self.values: dict[int, Any] = {}  # of the ranks that had answered before
        self.exception_formatted = traceback_text or f"{type(exception).__name__}: {exception}\n"
        self.__cause__ = exception

    def __str__(self) -> str:
        return (
            f"{self.message}\n"
            "Traceback of where the remote call failed (most recent call last):\n"
            f"{self.exception_formatted}"
        )

    @property
    def remote_traceback(self) -> str:
        """The traceback on the rank, user frames only, as text."""
        return self.exception_formatted

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.exception, self.message), self.__dict__


class RemoteException(ActorError):
    """An operation on tensors of a mesh has failed on ranks, and this needs its result.

    Raised by what fetches. `exception` is the error of the first of `ranks`; `operation` what has
    failed, and `controller_frames` are file, line and function of what has issued it.
    """

    operation: str = ""
    ranks: tuple[int, ...] = ()
    controller_frames: tuple[tuple[str, int, str], ...] = ()


class DeviceMeshError(MeshError):
    """Part of a mesh is lost; it can be healed (`mesh.heal()`, `heal_mesh(mesh)`, `%mesh heal`).

    `ranks` are the lost ranks in the mesh; `failure` is the `MeshFailure`, where there is one;
    `values` maps the ranks that had answered before the loss to their values.
    """

    def __init__(
        self, message: str = "", *, ranks: tuple[int, ...] = (), failure: object = None
    ) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.failure = failure
        self.values: dict[int, Any] = {}


class SupervisionError(DeviceMeshError, RuntimeError):
    """What a pending or later call gets when its actor or its process has died.

    `endpoint` names the call that failed ("trainer.step()"), when known.
    """

    endpoint: str | None = None


class RankExited(SupervisionError):
    """A rank's process ended: `exitcode` (>= 0) or `signal`; `log_tail` is what it printed last."""

    exitcode: int | None = None
    signal: int | None = None
    log_tail: str = ""


class RankUnreachable(SupervisionError):
    """A rank has been silent for longer than the grace period, or its link broke."""

    last_heard_s: float = 0.0


class CallCancelled(MeshError):
    """The call was cancelled before its endpoint started."""


class CallInterrupted(MeshError):
    """The endpoint was running and got a KeyboardInterrupt because its caller was interrupted."""


class EncodeError(MeshError, TypeError):
    """A value cannot be pickled. The message names the place: `args[1].optimizer`."""


class DecodeError(MeshError, TypeError):
    """A value arrived but cannot be unpickled here."""


class RankNameError(MeshError, NameError):
    """A variable is not defined in the cells of some ranks: `ranks`; its name is `name`."""

    def __init__(self, message: str = "", *, name: str = "", ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.ranks = ranks

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, {**self.__dict__, "name": self.name}


class LaunchError(MeshError, RuntimeError):
    """A host agent or a rank could not be started: stage, command, last lines of stderr."""


class LimitError(MeshError, MemoryError):
    """Something is larger than allowed or memory is full. Carries `limit` and `size`."""

    def __init__(self, message: str = "", *, limit: int = 0, size: int = 0) -> None:
        super().__init__(message)
        self.limit = limit
        self.size = size


class ProtocolError(MeshError):
    """Bytes that are no message of ours."""


class LocalProtocolError(ProtocolError):
    """This process tried to send something that is no message."""


class RemoteProtocolError(ProtocolError):
    """A peer sent something that is no message."""


class AuthError(MeshError, PermissionError):
    """A key, a key file or a peer is not to be trusted."""


class ClosedError(MeshError, RuntimeError):
    """You stopped it and used it again."""


class BrokenError(MeshError, RuntimeError):
    """It broke under you."""


class MeshInternalError(MeshError):
    """Never expected. Please report it with the text it carries."""
