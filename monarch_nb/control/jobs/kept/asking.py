"""`monarch-nb apply | exec | shell | kill | context`, as they are typed in a terminal.

Rules: a job is held by a process of its own (`holder.py`), which these ask; nothing here starts a
client. What goes wrong is one line that ends with what to type.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from monarch_nb.control.jobs.kept import records, wanted
from monarch_nb.control.jobs.kept.records import Record
from monarch_nb.control.jobs.kept.visiting import AskError, answer, visit
from monarch_nb.control.jobs.status import JobStatus, Stage, stage_text
from monarch_nb.errors import MeshError

_HOLDER: Final = (sys.executable, "-P", "-m", "monarch_nb.control.jobs.kept.holder")
_DEFAULT: Final = "default"
_BY_SIGNAL: Final = 130  # ctrl-C, as shells say it
_ENV: Final = "KEY=VALUE"


def add_commands(commands: Any) -> None:
    """Add the commands to those of `monarch-nb`."""
    apply = commands.add_parser("apply", help="get the hosts of a job, and keep them")
    wanted.add_options(apply)
    apply.add_argument("--name", default=_DEFAULT, help="of the job, for the other commands")
    apply.set_defaults(run=_apply)
    run = commands.add_parser("exec", help="run a command on all hosts of a job")
    run.add_argument("--host", type=int, help="on this one only, 0 is the first")
    run.add_argument("--per-host", default=[], action="append", metavar="AXIS=N")
    run.add_argument("-e", "--env", default=[], action="append", metavar=_ENV)
    run.add_argument("--workdir", help="the folder there; else the one that apply was typed in")
    run.add_argument("--kill", action="store_true", help="end the job behind it")
    run.add_argument("command", nargs=argparse.REMAINDER, help="as: train.py --lr 0.1")
    run.set_defaults(run=_exec)
    shell = commands.add_parser("shell", help="open a shell on a host of a job")
    shell.add_argument("host", type=int, nargs="?", default=0, help="0 is the first")
    shell.set_defaults(run=_shell)
    kill = commands.add_parser("kill", help="end a job: its hosts are given back")
    kill.set_defaults(run=_kill)
    for each in (run, shell):
        each.add_argument("--mesh", help="of the job, where it has several")
    for each in (run, shell, kill):
        each.add_argument("--name", help="of the job; else the one in use")
    context = commands.add_parser("context", help="the jobs that are known, and the one in use")
    context.add_argument("use", nargs="?", choices=["use"], help="use another one from now on")
    context.add_argument("name", nargs="?")
    context.set_defaults(run=_context)


def run(chosen: argparse.Namespace, behind: Sequence[str]) -> int:
    """Do it; `behind` is what stands behind `--`. Returns the exit code."""
    chosen.behind = list(behind)
    try:
        code: int = chosen.run(chosen)
    except (AskError, MeshError, ValueError) as error:
        sys.stderr.write(f"monarch-nb: {error}\n")
        return 2
    except KeyboardInterrupt:
        return _BY_SIGNAL
    except BrokenPipeError:  # nobody reads any more: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor what is not flushed
        return 0
    return code


def _apply(chosen: argparse.Namespace) -> int:
    records.check_name(chosen.name)
    if (there := records.find(chosen.name)) is not None:
        raise AskError(
            f"{chosen.name} is there already ({there.asked}). Type: monarch-nb kill --name "
            f"{chosen.name}, or apply with another --name"
        )
    spec = wanted.read(chosen, chosen.behind)
    log = records.new_log(chosen.name)
    with log.open("ab") as errors:
        holder = subprocess.Popen(
            _HOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # it stays, and ctrl-C is for this program
        )
    try:
        sizes = _follow(holder, {"name": chosen.name, "spec": spec}, log)
    except KeyboardInterrupt:
        holder.terminate()
        holder.wait()
        raise AskError("cancelled: the hosts are given back") from None
    records.use(chosen.name)
    has = ", ".join(f"{name}: {count} hosts" for name, count in sizes.items())
    _say(f"{chosen.name} is up ({has}). Type: monarch-nb exec hostname\n")
    return 0


def _follow(holder: subprocess.Popen[bytes], asked: dict[str, Any], log: Path) -> dict[str, int]:
    assert holder.stdin is not None
    assert holder.stdout is not None
    with contextlib.suppress(BrokenPipeError), holder.stdin as out:
        out.write(json.dumps(asked).encode() + b"\n")
    with holder.stdout as lines:
        for line in lines:
            said = json.loads(line)
            if "status" in said:
                _say(said["status"] + "\n")
            if "error" in said:
                holder.wait()
                raise AskError(said["error"])
            if "up" in said:
                sizes: dict[str, int] = said["up"]
                return sizes
    words = log.read_text().strip().rpartition("\n")[2]
    raise AskError(f"its process ended with code {holder.wait()}: {words}. See {log}")


def _exec(chosen: argparse.Namespace) -> int:
    command = [*chosen.command, *chosen.behind]
    if not command:
        raise AskError("exec needs a command. Type: monarch-nb exec hostname")
    record = _meant(chosen.name)
    asked = {
        "do": "exec",
        "mesh": chosen.mesh,
        "host": chosen.host,
        "command": command,
        "env": dict(_pair(each, "-e", _ENV) for each in chosen.env),
        "per_host": {
            label: _count(size, label)
            for label, size in (_pair(each, "--per-host", "gpus=8") for each in chosen.per_host)
        }
        or None,
        "workdir": chosen.workdir,
    }
    code: int = _answer(record, asked)["code"]
    if chosen.kill:
        _end(record)
    return code


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise AskError(f"{option} {text}: write it as {option} {form}")
    return name, value


def _count(text: str, label: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise AskError(f"--per-host {label}={text}: write it as --per-host {label}=8")
    return int(text)


def _shell(chosen: argparse.Namespace) -> int:
    asked = {"do": "shell", "mesh": chosen.mesh, "host": chosen.host}
    words = shlex.split(_answer(_meant(chosen.name), asked)["said"])
    try:
        os.execvp(words[0], words)  # noqa: S606  no shell: words, as the engine has them
    except OSError as error:
        raise AskError(f"{words[0]}: {error.strerror}. Type: {shlex.join(words)}") from None


def _kill(chosen: argparse.Namespace) -> int:
    _end(_meant(chosen.name))
    return 0


def _end(record: Record) -> None:
    _answer(record, {"do": "kill"})
    _say(f"{record.name} has ended, its hosts are given back\n")


def _context(chosen: argparse.Namespace) -> int:
    if chosen.use:
        if chosen.name is None:
            raise AskError("which one? Type: monarch-nb context use NAME")
        records.use(_meant(chosen.name).name)
    known, current = records.all_records(), records.current()
    if not known:
        _say("no job is known. Type: monarch-nb apply --on ssh:node1,node2\n")
    for record in known:
        mark = "*" if record.name == current else " "
        _say(f"{mark} {record.name}  {record.asked}  {_stage(record)}\n")
    return 0


def _stage(record: Record) -> str:
    try:
        said = _answer(record, {"do": "status"})["said"]
    except AskError:
        return "ending"
    if said["status"] is None:
        return "up"
    engine, stage, joined, hosts, reason = said["status"]
    return stage_text(JobStatus(engine, Stage(stage), joined, hosts, reason=reason))


def _meant(name: str | None) -> Record:
    wanted_name = name or records.current() or _DEFAULT
    found = records.find(wanted_name)
    if found is not None:
        return found
    known = ", ".join(each.name for each in records.all_records())
    if not known:
        raise AskError("no job is known. Type: monarch-nb apply --on ssh:node1,node2")
    raise AskError(f"there is no job {wanted_name!r}; known: {known}. Type: monarch-nb context")


def _answer(record: Record, asked: dict[str, Any]) -> dict[str, Any]:
    """Ask who holds a job; show what is said meanwhile, and return the end of it."""
    with visit(record) as stream:
        return answer(stream, record, asked, _show)


def _show(stream: str, text: str) -> None:
    if stream == "out":
        _say(text)
    else:
        sys.stderr.write(text)


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody reads any more: `| head`
        sys.stdout.write(text)
        sys.stdout.flush()
