"""The running kernels of this user on this machine, and what they say when they are asked.

Rule: all are asked at once, and one that does not greet within `GREET_S` is given up: processes
that are stopped cost no more than that, however many there are.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

from monarch_nb.control.inspection.asked import SCHEMA, Asked
from monarch_nb.control.jobs.kept.visiting import AskError
from monarch_nb.host.rundir import Owner, is_stopped, owners
from monarch_nb.net import wire

GREET_S: Final = 1.8
ANSWER_S: Final = 20.0
MAX_LINE: Final = 256 << 20
MAX_AT_ONCE: Final = 64


@dataclass(frozen=True)
class Told:
    """What one kernel, or another program with meshes, has said: its answer, or why there is none.

    `notebook`, `version` and `meshes` are those of its greeting; None where it has not greeted.
    """

    owner: Owner
    notebook: str | None = None
    version: str | None = None
    meshes: tuple[str, ...] | None = None
    answer: dict[str, Any] | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        return self.notebook or self.owner.command

    def to_json(self) -> dict[str, Any]:
        """Return who it is, and its answer."""
        return {
            "pid": self.owner.pid,
            "notebook": self.notebook,
            "command": self.owner.command,
            "version": self.version,
            "error": self.error,
            **(self.answer or {}),
        }


def all_owners(pid: int | None = None) -> list[Owner]:
    """Return the kernels that run, or the one of this process. Raises `AskError` for no such."""
    found = sorted(owners())
    if pid is None:
        return found
    if chosen := [each for each in found if each.pid == pid]:
        return chosen
    known = ", ".join(str(each.pid) for each in found) or "none"
    raise AskError(f"process {pid} is no kernel of yours on this machine; these are: {known}")


def ask(asked: Asked, of: Sequence[Owner]) -> list[Told]:
    """Ask all of these at once; return what they say in the same order."""
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        return list(pool.map(lambda owner: _told(asked, owner), of))


def choose(mesh: str | None, pid: int | None) -> Owner:
    """Return the kernel that is meant: that process, or the only one that has such a mesh, or any.

    Raises `AskError` where there is none, or several.
    """
    known = all_owners(pid)
    if pid is not None:
        return known[0]
    told = ask(Asked("hello"), known)
    fits = [each for each in told if each.meshes and (mesh is None or mesh in each.meshes)]
    if len(fits) == 1:
        return fits[0].owner
    what = "meshes" if mesh is None else f"a mesh {mesh!r}"
    silent = "".join(f"\n  {each.error}" for each in told if each.error)
    if not fits:
        raise AskError(f"no kernel of yours on this machine has {what}{silent}")
    rows = "".join(
        f"\n  {each.owner.pid}  {each.name}: {', '.join(each.meshes or ())}" for each in fits
    )
    raise AskError(
        f"several kernels have {what}; choose one: --kernel {fits[0].owner.pid}{rows}{silent}"
    )


def answers(asked: Asked, owner: Owner) -> Iterator[dict[str, Any]]:
    """Yield all that a kernel answers, until it ends. Raises `AskError` where it does not answer,
    or refuses."""
    with _visit(owner) as (stream, lines):
        _greeting(lines, owner)
        stream.settimeout(None)
        stream.sendall(asked.to_line())
        while line := lines.readline(MAX_LINE):
            yield _answer(line, owner)


def _told(asked: Asked, owner: Owner) -> Told:
    told = Told(owner)
    try:
        with _visit(owner) as (stream, lines):
            hello = _greeting(lines, owner)
            told = Told(owner, hello["notebook"], hello["version"], tuple(hello["meshes"]))
            stream.settimeout(ANSWER_S)
            stream.sendall(asked.to_line())
            return replace(told, answer=_answer(lines.readline(MAX_LINE), owner))
    except AskError as error:
        return replace(told, error=str(error))


@contextlib.contextmanager
def _visit(owner: Owner) -> Iterator[tuple[Any, BinaryIO]]:
    try:
        stream = wire.connect_inspection_server(owner.path, GREET_S)
        with stream, stream.makefile("rb") as lines:
            yield stream, lines
    except (OSError, ValueError, KeyError, TypeError) as error:  # also AuthError, and no JSON
        raise AskError(f"process {owner.pid} {_why(owner.pid, error)}") from None


def _greeting(lines: BinaryIO, owner: Owner) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(lines.readline(MAX_LINE))
    if said["schema"] != SCHEMA:
        raise AskError(
            f"process {owner.pid} runs monarch_nb {said['version']}, which answers otherwise: "
            "restart it"
        )
    return said


def _answer(line: bytes, owner: Owner) -> dict[str, Any]:
    said = json.loads(line)
    if "error" in said:
        raise AskError(f"{said['error']} (process {owner.pid})")
    answer: dict[str, Any] = said["answer"]
    return answer


def _why(pid: int, error: Exception) -> str:
    if is_stopped(pid):
        return f"does not answer: it is stopped. Type: kill -CONT {pid}"
    if isinstance(error, TimeoutError | BlockingIOError):
        return "does not answer: C code may hold its interpreter"
    if isinstance(error, FileNotFoundError):
        return "runs an older monarch_nb, which does not answer: restart it"
    return "does not answer: it has ended, or too many ask it at once"
