"""`%mesh jobs`, `hosts`, `script`, `shell`, `doctor`: the hosts that engines give, those that have
joined, what is done there, and what is wrong with them."""

from __future__ import annotations

import argparse
import html
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from IPython.display import display

from monarch_nb.control.jobs.status import clock, told
from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.core.text.units import duration
from monarch_nb.notebook import options
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.display.display import table_html, table_text
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.jobs import where
from monarch_nb.notebook.jobs.where import WhereParser
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import JobStatus, ListedHost, ProcMesh

MAX_PLACES: Final = 8  # hosts that are named in a line of the doctor's
_NO_LIMIT_S: Final = 300 * 24 * 3600.0  # Slurm says a year where there is none
NO_HOSTS: Final = "All ranks are on this machine: no other host has joined"
NO_JOB: Final = "No hosts were asked for. Type: %mesh up --on ssh:node1,node2 --gpus 8"

_JOBS: Final = Parser("%mesh jobs", "%mesh jobs")

_HOSTS: Final = Parser("%mesh hosts", "%mesh hosts, or %mesh hosts --revoke node2")
_HOSTS.add_argument("--revoke", metavar="HOST")

_SCRIPT: Final = WhereParser(
    "%mesh script", "%mesh script, or %mesh script --on slurm --hosts 4 --gpus 8"
)
_SCRIPT.add_argument("name", nargs="?", metavar="MESH")


class ShellParser(Parser):
    """Keeps what is behind `--`."""

    def own(self, words: list[str]) -> list[str]:
        return where.cut(words)[0]

    def parse_args(self, words: list[str]) -> argparse.Namespace:
        typed, behind = where.cut(words)
        chosen: argparse.Namespace = super().parse_args(typed)
        chosen.words = tuple(behind)
        return chosen


_SHELL: Final = ShellParser("%mesh shell", "%mesh shell 3, or %mesh shell 3 -- nvidia-smi")
_SHELL.add_argument("rank", type=options.ranks, metavar="RANK")
_SHELL.add_argument("--name")

_DOCTOR: Final = Parser("%mesh doctor", "%mesh doctor, or %mesh doctor mesh0")
_DOCTOR.add_argument("name", nargs="?", metavar="MESH")


class Table:
    """Lines below headings, as text and as HTML."""

    def __init__(self, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
        self._headings = headings
        self._lines = lines

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        body = "".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in self._lines)
        return {
            "text/plain": table_text(self._headings, self._lines),
            "text/html": table_html(self._headings, body),
        }


def _cell(text: str) -> str:
    return f"<td style='text-align:left'>{html.escape(text)}</td>"


def _jobs(session: Session, _: argparse.Namespace) -> None:
    found = session.jobs.all()
    if not found:
        say(NO_JOB)
        return
    headings = ("mesh", "engine", "id", "stage", "hosts", "time left")
    display(Table(headings, [_row(name, status) for name, status in found.items()]))


def _row(name: str, status: JobStatus | None) -> Sequence[str]:
    if status is None:
        return name, "", "", "not known", "", ""
    hosts = f"{status.joined}/{status.hosts}"
    return name, status.engine, status.id, told(status), hosts, _time_left(status.ends_at)


def _time_left(ends_at: float | None) -> str:
    left_s = None if ends_at is None else max(0.0, ends_at - time.time())
    return "" if left_s is None or left_s > _NO_LIMIT_S else duration(left_s)


def _hosts(session: Session, chosen: argparse.Namespace) -> None:
    if chosen.revoke is not None:
        session.link.attach()
        try:
            gone = session.control.revoke_host(chosen.revoke)
        except ValueError as error:
            raise MagicError(str(error)) from None
        lost = f"; ranks of {', '.join(gone.meshes)} there are lost: %mesh heal" * bool(gone.meshes)
        say(f"{gone.name} is not had any more, and not asked for again{lost}")
        return
    found = session.control.hosts()
    if not found:
        say(NO_HOSTS)
        return
    headings = ("", "host", "connected to", "has shown", "since", "state", "ranks of")
    display(Table(headings, [_host_row(each) for each in found]))


def _host_row(host: ListedHost) -> Sequence[str]:
    since = "" if host.since is None else clock(host.since)
    first = host.state.partition("\n")[0]
    meshes = ", ".join(host.meshes)
    return str(host.number), host.name, host.address, host.key, since, first, meshes


def _script(session: Session, chosen: argparse.Namespace) -> None:
    if chosen.on is None:
        name = chosen.name or session.meshes.pick().name
        job = session.jobs.job(name)
    else:
        given = [] if chosen.name is None else [_axis(chosen.name)]
        wanted, _ = where.wanted(_SCRIPT, chosen, where.sizes(_SCRIPT, given, chosen.gpus))
        assert wanted is not None, "an engine was named"
        job = session.control.job("mesh0", wanted)
    try:
        say(job.script().rstrip("\n"))
    except RuntimeError as error:
        raise MagicError(str(error)) from None


def _axis(text: str) -> tuple[str, int]:
    try:
        return options.axis(text)
    except argparse.ArgumentTypeError as wrong:
        _SCRIPT.error(str(wrong))


def _shell(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.control.whole(session.meshes.pick(chosen.name))
    if len(chosen.rank) != 1:
        _SHELL.error(f"is for one rank, not for {rank_words(chosen.rank)}")
    [rank] = chosen.rank
    check_ranks(mesh, [rank])
    if not chosen.words:
        say(_way_in(session, mesh, rank))
        return
    session.link.attach()
    code = session.control.run_on_host(mesh, rank, chosen.words)
    if code:
        say(f"{chosen.words[0]} ended with code {code}")


def _way_in(session: Session, mesh: ProcMesh, rank: int) -> str:
    job = session.jobs.find(mesh.name)
    if job is None:
        return f"rank {rank} is on this machine: open a terminal here"
    try:
        command = job.shell_command(session.control.host_of(mesh, rank))
    except RuntimeError as error:
        return f"the host of rank {rank}: {error}"
    return (
        f"A notebook has no terminal. In one, this opens a shell where rank {rank} is:\n{command}"
    )


def _doctor(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name) if chosen.name else session.meshes.glance()
    alike: dict[tuple[str, str], list[str]] = {}
    for finding in session.control.doctor(mesh):
        alike.setdefault((finding.what, finding.fix), []).append(finding.where)
    for (what, fix), places in alike.items():
        named = ", ".join(places[:MAX_PLACES]) + (", ..." if places[MAX_PLACES:] else "")
        say(f"!   {named}: {what}\n    -> {fix}" if fix else f"ok  {named}: {what}")


JOBS: Final = Command(_JOBS, _jobs, (
    ("jobs", "the hosts that were asked for: why they are queued, how long they have"),
))  # fmt: skip
HOSTS: Final = Command(_HOSTS, _hosts, (
    ("hosts", "the hosts that have joined, with their keys"),
    ("    --revoke HOST", "have one no more: its ranks end, no heal uses it again"),
))  # fmt: skip
SCRIPT: Final = Command(_SCRIPT, _script, (
    ("script [MESH]", "what the engine was given for it: a script, a manifest, commands"),
    ("    --on slurm --hosts 4 --gpus 8", "what it would be given; the options of up"),
))  # fmt: skip
SHELL: Final = Command(_SHELL, _shell, (
    ("shell RANK [--name MESH]", "what opens a shell on its host, in a terminal"),
    ("    -- nvidia-smi", "run this there instead, and show what it writes"),
))  # fmt: skip
DOCTOR: Final = Command(_DOCTOR, _doctor, (
    ("doctor [MESH]", "what is wrong with this machine and its hosts, and what to type"),
))  # fmt: skip
