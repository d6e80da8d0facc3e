"""Commands that run on hosts, as a shell there would run them.

What a command writes goes where the output of ranks goes, at once. It ends with its rank, and when
the call is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.meshes.proc_mesh import HostMesh
from monarch_nb.process.context import context
from monarch_nb.process.futures.future import Future, make

_NOT_FOUND: Final = 127  # as shells say it
_BY_SIGNAL: Final = 128


class CommandRunner(Actor):
    """Runs one command on each rank."""

    @endpoint
    def run(
        self,
        command: list[str],
        env: dict[str, str],
        workdir: str | None,
        here: str,
        output_dir: str | None,
    ) -> int:
        folder = workdir or (here if Path(here).is_dir() else None)
        with contextlib.ExitStack() as files:
            out = err = None
            if output_dir is not None:
                place = Path(output_dir.replace("$SUBDIR", _coordinates()))
                place.mkdir(parents=True, exist_ok=True)
                out = files.enter_context((place / "stdout.txt").open("wb"))
                err = files.enter_context((place / "stderr.txt").open("wb"))
            try:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **_rank_variables(), **env},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except OSError as error:
                sys.stderr.write(f"{command[0]}: {error.strerror}\n")
                return _NOT_FOUND
            return _exit_code(process)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    try:
        code = process.wait()
    except BaseException:  # interrupted
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return code if code >= 0 else _BY_SIGNAL - code


def _coordinates() -> str:
    point = context().actor_instance.rank
    return "_".join(f"{label}_{place}" for label, place in point.items())


def _rank_variables() -> dict[str, str]:
    point = context().actor_instance.rank
    places = {f"MONARCH_RANK_{label}": str(place) for label, place in point.items()}
    return places | {f"MONARCH_SIZE_{label}": str(point.size(label)) for label in point}


def exec_command(
    host_mesh: HostMesh,
    cmd: Sequence[str],
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: Mapping[str, int] | None = None,
    per_host: Mapping[str, int] | None = None,
) -> Future[int]:
    """Run a command on hosts; the future gives the largest exit code. It runs also if nobody waits.

    Args:
        cmd: a program and its arguments. `x.py` and `-m module` are run by the hosts' Python.
        env: more environment variables. `MONARCH_RANK_<axis>` and `MONARCH_SIZE_<axis>` are set.
        workdir: the folder there; None: our current one, where it exists.
        output_dir: takes `stdout.txt` and `stderr.txt` there instead of showing them here;
            `$SUBDIR` in it stands for the coordinates, as in `hosts_0_gpus_1`.
        rank: of the host that is to run it, of all.
        point: coordinates of the hosts that are to run it.
        per_host: axes and sizes, to run it several times on each host.

    Raises:
        ValueError: no command, or both `rank` and `point`.

    Example:
        >>> exec_command(this_host(), ["nvidia-smi"]).get()      # doctest: +SKIP
        0
    """
    words = list(cmd)
    if not words:
        raise ValueError("exec_command needs a command, as a list of words")
    if words[0] == "-m" or words[0].endswith(".py"):
        words.insert(0, sys.executable)
    procs = _chosen(host_mesh, rank, point).spawn_procs(per_host, name="command")
    runner = procs.spawn("command", CommandRunner)
    codes: Future[ValueMesh[int]] = runner.run.call(
        words, dict(env or {}), workdir, str(Path.cwd()), output_dir
    )
    done = _Code.of(codes)

    def finish(_: object) -> None:
        try:
            done._set_result(max(codes.get().values()))
        except BaseException as error:  # noqa: BLE001  of the commands, for whoever waits
            done._set_exception(error)

    # refers to the processes until they are stopped: nobody else may
    codes.add_done_callback(lambda _: procs.stop("the command has ended").add_done_callback(finish))
    return done


class _Code(Future[int]):
    """Who interrupts its wait interrupts the commands."""

    __slots__ = ("_codes",)
    _codes: Future[ValueMesh[int]]

    @classmethod
    def of(cls, codes: Future[ValueMesh[int]]) -> _Code:
        made = make(cls)
        made._codes = codes
        return made

    def cancel(self) -> bool:
        return self._codes.cancel()


def _chosen(host_mesh: HostMesh, rank: int | None, point: Mapping[str, int] | None) -> HostMesh:
    if rank is not None and point is not None:
        raise ValueError("exec_command takes a rank or a point, not both")
    if point is not None:
        return host_mesh.slice(**point)
    return host_mesh if rank is None else host_mesh.flatten("rank").slice(rank=rank)
