"""What gives hosts back when this program has gone, however it went: a shell that holds its pipe.

A job in the queue is not bound to a process. So it is submitted by a shell, which cancels it once
the pipe to its standard input is closed: there is no moment at which a job is in the queue and
nobody is there who takes it out, not even while sbatch runs and nobody waits for it any more. Hosts
of kept meshes stay (`Staying`): they end by themselves, and the job with the last of them. Only
where that shell is killed too, or the whole machine ends, the job stays; its hosts then find
nobody, say so, and end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from monarch_nb.control.jobs.slurm.squeue import TIME_FORMAT, advice
from monarch_nb.errors import LaunchError
from monarch_nb.host import guard
from monarch_nb.host.launch import last_lines

_NAME: Final = "monarch_nb-slurm"  # for who looks at the processes
_SUBMIT: Final = """
id=$(printf %s "$1" | sbatch --parsable | tail -n 1)
id=${id%%;*}
case $id in ''|*[!0-9]*) exit 1;; esac
trap '' PIPE  # nobody may read the id any more: it is cancelled all the same
echo "$id"
exec >/dev/null 2>&1
read -r word
rm -f -- "$2"
[ "$word" = stay ] && exit 0
for pause in 1 2 4 8 16 32 64; do
  if scancel "$id"; then
    [ "$word" ] || { rm -f -- "${2%/*}/output"; rmdir -- "${2%/*}"; }
    exit 0
  fi
  sleep "$pause"
done
"""
_START: Final = """
output=$1
ticket=$2
shift 2
exec 3<&0 </dev/null >>"$output" 2>&1
"$@" 3<&- &
srun=$!
{
  read -r word <&3
  rm -f -- "$ticket"
  [ "$word" ] || { rm -f -- "${ticket%/*}/output"; rmdir -- "${ticket%/*}"; }
  [ "$word" = stay ] || kill "$srun"
} &
reader=$!
exec 3<&-
wait "$srun"
code=$?
kill "$reader"
exit "$code"
"""
_KEPT: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
_JOB_ID: Final = re.compile(r"\d+")
_LIMIT_S: Final = 30.0
_log: Final = logging.getLogger(__name__)


class Keeper:
    """A shell that gives back what it has started when `release` is called, or this program has
    gone; then nobody reads what the hosts have written, and it is removed."""

    def __init__(self, script: str, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, _NAME, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # ctrl-C in a terminal is for this program
        )
        self._lock = threading.Lock()  # who waits for hosts, and the queue's thread
        self._is_heard = False

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def hear(self) -> str:
        """Return what it says until it is silent for good; nothing, once it is released."""
        stream = self._process.stdout
        assert stream is not None
        try:
            with self._lock:
                self._is_heard = not stream.closed
            return stream.read().decode(errors="replace").strip() if self._is_heard else ""
        finally:
            stream.close()

    def release(self, limit_s: float) -> None:
        """Have it give back what it has started; wait so long for that. Harmless when repeated."""
        self._say(b"end\n")
        with self._lock:
            if self._process.stdout is not None and not self._is_heard:  # who reads it closes it
                self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on
            self._process.wait(limit_s)

    def let_stay(self) -> tuple[int, int]:
        """Have it leave what it has started when this program ends; return its number and the time
        of its start."""
        self._say(b"stay\n")
        return self._process.pid, guard.started_at(self._process.pid) or 0

    def _say(self, word: bytes) -> None:
        stream = self._process.stdin
        assert stream is not None
        with self._lock:
            if not stream.closed:
                with contextlib.suppress(BrokenPipeError), stream:
                    stream.write(word)


class Staying:
    """What stays when this program ends: a job, or an srun in an allocation, behind the shell with
    this number and time of its start."""

    def __init__(self, job: str, shell: tuple[int, int], *, is_step: bool) -> None:
        self._job = job
        self.shell = shell
        self._is_step = is_step

    @property
    def has_ended(self) -> bool:
        pid, started = self.shell
        return self._is_step and guard.started_at(pid) != started

    def release(self, limit_s: float) -> None:
        """Give it back; wait so long for that. Harmless when repeated."""
        if not self._is_step:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                command = ["scancel", self._job]
                subprocess.run(command, capture_output=True, timeout=limit_s or None, check=False)
        elif not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.shell[0], signal.SIGTERM)


Own = Callable[[Keeper], object]
"""Takes a shell that has just been started: it is released then, whatever comes."""


def submit(script: str, ticket: Path, options: Sequence[str], own: Own) -> str:
    """Submit a script with these options in it; return the id of the job. `own` is given what
    cancels it, before Slurm can have it.

    Raises `LaunchError` with the words of Slurm where it is refused.
    """
    environment = sbatch_environment(os.environ, options)
    words = _owned(own, _SUBMIT, [script, str(ticket)], environment).hear()
    job = words.rpartition("\n")[2]
    if _JOB_ID.fullmatch(job) is None:
        lines = ["Slurm does not take the job:", last_lines(words), advice(words)]
        raise LaunchError("\n".join(filter(None, lines)))
    return job


def start(command: Sequence[str], output: Path, ticket: Path, own: Own) -> None:
    """Run srun in an allocation, which is there already; `own` is given what ends it."""
    keeper = _owned(own, _START, [str(output), str(ticket), *command], os.environ)
    keeper.hear()  # nothing: the output has a file


def _owned(own: Own, script: str, words: Sequence[str], env: Mapping[str, str]) -> Keeper:
    # the stop button between the start of the shell and `own` would leave it to nobody
    with guard.held_back(signal.SIGINT):
        keeper = Keeper(script, words, env)
        own(keeper)
    return keeper


def give_back_others(job: str, nodes: Sequence[str]) -> None:
    """Have a job keep these of its nodes only; where the site does not allow that, it keeps all."""
    command = ["scontrol", "update", f"jobid={job}", f"nodelist={','.join(nodes)}"]
    try:
        with tempfile.TemporaryDirectory() as folder:  # some versions write a script where they are
            subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=True
            )
    except subprocess.CalledProcessError as error:
        _log.warning("Slurm job %s keeps all its nodes: %s", job, last_lines(error.stderr))
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("Slurm job %s keeps all its nodes: %s", job, error)


def sbatch_environment(environ: Mapping[str, str], options: Sequence[str]) -> dict[str, str]:
    """Return the environment for sbatch. What an outer job has there is not for this one, and a
    variable overrules the script: so it goes where this very option was asked for."""
    names = (each.lstrip("-").partition("=")[0] for each in options)
    asked = {f"SBATCH_{each.upper().replace('-', '_')}" for each in names}
    asked |= {"SBATCH_TIMELIMIT"} if "SBATCH_TIME" in asked else set()
    asked |= {"SBATCH_WAIT"}  # its answer comes when the job is over
    return {
        name: value
        for name, value in environ.items()
        if name not in asked and (name in _KEPT or not name.startswith("SLURM_"))
    }


def squeue_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for squeue: none of the user's ways to see it, times as numbers."""
    kept = {name: value for name, value in environ.items() if not name.startswith("SQUEUE_")}
    return {**kept, "SLURM_TIME_FORMAT": TIME_FORMAT}
