"""`%mesh up`, `down`, `scale`, `heal`, `restart`: how meshes come, go and are mended."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from monarch_nb.config import Config
from monarch_nb.notebook import kept_meshes, options
from monarch_nb.notebook.cells import resuming
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.jobs import where
from monarch_nb.notebook.jobs.live_line import steps_below
from monarch_nb.notebook.jobs.scaling import HOSTS
from monarch_nb.notebook.meshes import Asked
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import KeptRecord

_DOWN: Final = Parser("%mesh down", "%mesh down, or %mesh down mesh0, or %mesh down --all")
_DOWN.add_argument("name", nargs="?", metavar="MESH")
_DOWN.add_argument("--all", action="store_true")
_DOWN.add_argument("--kept", action="store_true")

_SCALE: Final = Parser("%mesh scale", "%mesh scale --hosts 6")
_SCALE.add_argument("name", nargs="?", metavar="MESH")
_SCALE.add_argument("--hosts", type=options.count)
_SCALE.add_argument("--add", metavar="NODE,NODE")

_HEAL: Final = Parser("%mesh heal", "%mesh heal, or %mesh heal --shrink")
_HEAL.add_argument("name", nargs="?", metavar="MESH")
_HEAL.add_argument("--shrink", action="store_true")

_RESTART: Final = Parser("%mesh restart", "%mesh restart, or %mesh restart 3")
_RESTART.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_RESTART.add_argument("--name")

LOOK_HINT: Final = (
    "{} as a cell's last line is a live view; monarch_nb.log(step, loss=loss) draws curves there."
)


def _up(session: Session, chosen: argparse.Namespace) -> None:
    is_first = session.meshes.is_unused
    wanted, cell = where.asked(chosen), session.cells.here()
    kept_s = chosen.keep or Config.from_environ().keep_s
    if wanted.hosts is not None:
        cell.waiting.end()  # the live line says more
    steps = steps_below(cell.output)
    if is_first and chosen.there != "new":
        records = session.control.kept_meshes()
        sizes = dict(wanted.sizes)
        left = kept_meshes.left_here(records, chosen.name, sizes, wanted.hosts)
        if left is not None and chosen.there == "replace":
            session.control.end_kept(left)
        elif left is not None:
            _bring_back(session, left, wanted)
            return
    say(session.lifecycle.up(wanted, chosen.name, chosen.there, steps, kept_s))
    if is_first:
        say(LOOK_HINT.format(session.meshes.current))


def _bring_back(session: Session, left: KeptRecord, wanted: Asked) -> None:
    # As for a mesh that is up already: what it holds is worth more than a fresh one
    for line in resuming.attach(session, left, fence=False):
        say(line)
    for mesh in left.meshes:
        if kept_meshes.is_such(left, mesh, dict(wanted.sizes), wanted.hosts):
            session.meshes.keep(mesh.name, session.meshes.pick(mesh.name), wanted)
    say("it has all that it held; --replace starts it anew, --new another one")


def _down(session: Session, chosen: argparse.Namespace) -> None:
    lifecycle = session.lifecycle
    if chosen.kept:
        say(kept_meshes.end(session.control, chosen.name))
        return
    if session.meshes.current and not chosen.all and (said := _left(session, chosen.name)):
        say(said)
        return
    left = session.jobs.without(session.meshes.everything())
    doomed = [name for name in left if chosen.all or name == chosen.name]
    for name in doomed:
        say(lifecycle.give_back(name))
    if chosen.all:
        if (meshes := lifecycle.every_mesh()) or not doomed:
            say(lifecycle.down(meshes))
    elif not doomed:
        say(lifecycle.down([lifecycle.whole_mesh(chosen.name)]))


def _left(session: Session, name: str | None) -> str:
    # of a mesh that another kernel drives: it is not ended
    if name is not None and name not in session.meshes.everything():
        return ""
    mesh = session.meshes.to_look_at(name)
    if session.control.not_driven(mesh) is None:
        return ""
    session.control.leave(mesh)
    session.meshes.forget(mesh.name)
    return f"{mesh.name} is looked at no more; it goes on"


def _scale(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.lifecycle.whole_mesh(chosen.name)
    places = tuple(filter(None, (chosen.add or "").split(",")))
    hosts = chosen.hosts
    if hosts is None:
        if not places:
            _SCALE.error("needs to know how many hosts")
        hosts = mesh.sizes.get(HOSTS, 1) + len(places)
    cell = session.cells.here()
    cell.waiting.end()  # the live line says more
    say(session.scaling.scale(mesh, hosts, places, steps_below(cell.output)))


def _heal(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.control.whole(session.meshes.pick(chosen.name))
    say(session.lifecycle.heal(mesh, shrink=chosen.shrink))


def _restart(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    say(session.lifecycle.restart(mesh, ranks))


UP: Final = Command(where.UP, _up, (
    ("up --gpus 4", "start four ranks on this machine, as mesh0; also up 4"),
    ("    --name MESH", "choose the name"),
    ("    --device cpu", "ranks see no GPU; cuda: each has one of its own"),
    ("    replicas=2 gpus=4", "any axes, the first one outermost"),
    ("    --keep 8h", "it outlives the kernel: %mesh attach brings it back after a restart"),
    ("    --replace", "end the mesh that is up, and start this one in its place"),
    ("    --new", "start this one beside the mesh that is up"),
    ("up --on ssh:node1,node2 --gpus 8", "start eight ranks on each of these hosts"),
    ("    --python PATH", "of the hosts; -- OPTIONS: of ssh"),
    ("    --spares 1", "one holds no ranks until %mesh heal needs it: the last of those named"),
    ("    --min-hosts 3", "so many are enough, where the others cannot come"),
    ("up --on slurm --hosts 4 --gpus 8", "the same on hosts from the queue"),
    ("    --time 4:00:00 --partition h100", "--account --qos --python; -- OPTIONS: of sbatch"),
    ("up --on k8s --hosts 4 --gpus 8", "pods, with --namespace ml --image IMAGE"),
    ("up --on ray --hosts 4 --gpus 8", "hosts of a Ray cluster that runs; --address HOST:PORT"),
    ("up --on processes --hosts 2 --gpus 4", "several hosts, played by processes of this machine"),
    ("up --on NAME", "a profile: its options are in ~/.config/monarch_nb/profiles.toml"),
))  # fmt: skip
DOWN: Final = Command(_DOWN, _down, (
    ("down [MESH] [--all]", "stop a mesh, or all, and give its hosts back"),
    ("    --kept", "one that has outlived its kernel, without attaching it"),
))  # fmt: skip
SCALE: Final = Command(_SCALE, _scale, (
    ("scale [MESH] --hosts 6", "more or fewer hosts; ranks that stay keep what they hold"),
    ("    --add node5,node6", "name the new ones, of ssh"),
))  # fmt: skip
HEAL: Final = Command(_HEAL, _heal, (
    ("heal [MESH] [--shrink]", "start lost ranks again; --shrink: go on without them"),
))  # fmt: skip
RESTART: Final = Command(_RESTART, _restart, (
    ("restart [RANKS] [--name MESH]", "end these ranks, or all, and start them again"),
))  # fmt: skip
