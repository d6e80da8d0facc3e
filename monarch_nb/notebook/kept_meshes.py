"""Meshes that outlive the kernel, as records say: which there are after a restart."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.control.engines import Wanted
from monarch_nb.core.text.units import are, count, duration, sizes_text
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.jobs.scaling import HOSTS

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, KeptMesh, KeptRecord, Left

NOTHING = "no mesh is kept. %mesh up --gpus 4 --keep 8h starts one that outlives the kernel"
_OLD_S: Final = 5.0


def names(record: KeptRecord) -> str:
    """Name the meshes of a record."""
    return ", ".join(each.name for each in record.meshes)


def quoted(record: KeptRecord) -> str:
    """Name the first mesh of a record as it is typed in a line of `%mesh`."""
    return shlex.quote(record.meshes[0].name)


def words(record: KeptRecord) -> str:
    """Describe a record in a line."""
    meshes = ", ".join(f"{each.name}: {sizes_text(each.sizes)}" for each in record.meshes)
    if record.is_driven():
        return f"{meshes}; driven by process {record.controller_pid}"
    return f"{meshes}; kept for {duration(record.for_s)}. %mesh attach {quoted(record)}"


def doing(left: Left) -> str:
    """Say in a line what the ranks of a record do that nobody drives."""
    ranks: dict[tuple[str, str], tuple[int, float]] = {}
    for host in left.told:
        for each in host.doing:
            number, for_s = ranks.get((each.state, each.what), (0, 0.0))
            ranks[each.state, each.what] = number + each.ranks, max(for_s, each.for_s)
    said = [_state(*what, *how) for what, how in ranks.items()]
    if left.silent:
        said.append(f"{', '.join(left.silent)} cannot be heard")
    if not left.told:
        return "; ".join(said) or "what its ranks do is not known"
    alone_s = max(each.alone_s for each in left.told)
    left_s = min(each.left_s for each in left.told)
    times = f"alone for {duration(alone_s)}, ends in {duration(left_s)}"
    age_s = max(each.age_s for each in left.told)
    return f"{', '.join(said)}; {times}{_age(age_s)}"


def _state(state: str, what: str, number: int, for_s: float) -> str:
    words = f"{count(number, 'rank')} {state}" + (f" ({what})" if what else "")
    return f"{words} for {duration(for_s)}" if for_s else words


def _age(age_s: float) -> str:
    # its host writes it once a second, unless that is stopped
    return f"; that was {duration(age_s)} ago" if age_s > _OLD_S else ""


def offers(records: Sequence[KeptRecord]) -> list[str]:
    """Return a line for each mesh that nobody drives."""
    return [
        f"{each.name} with {count(math.prod(each.sizes.values()), 'rank')} is still there: "
        f"%mesh attach {shlex.quote(each.name)}"
        for record in records
        if not record.is_driven()
        for each in record.meshes
    ]


def left_here(
    records: Sequence[KeptRecord],
    name: str | None,
    sizes: Mapping[str, int],
    hosts: Wanted | None = None,
) -> KeptRecord | None:
    """Return what the kernel of this notebook has left before, where it has such a mesh: of these
    sizes on this machine, or on such hosts.

    Raises `MagicError` where it has left other ones: they may hold what somebody wants back, and
    the GPUs.
    """
    here = [each for each in records if each.is_left_here()]
    for record in here:
        for mesh in record.meshes:
            if name in (None, mesh.name) and is_such(record, mesh, sizes, hosts):
                return record
    in_the_way = [mesh for record in here for mesh in record.meshes if name in (None, mesh.name)]
    if in_the_way:
        mesh = in_the_way[0]
        raise MagicError(
            f"{mesh.name} ({sizes_text(mesh.sizes)}) is still there from before. "
            f"Type: %mesh attach {shlex.quote(mesh.name)}, or %mesh down --kept "
            f"{shlex.quote(mesh.name)}; "
            "--new starts another one beside it"
        )
    return None


def is_such(
    record: KeptRecord, mesh: KeptMesh, sizes: Mapping[str, int], hosts: Wanted | None
) -> bool:
    """Tell whether a mesh of a record has these sizes, on this machine or on such hosts."""
    if record.hosts is None or hosts is None:
        return record.hosts is None and hosts is None and mesh.sizes == dict(sizes)
    wanted = {name: said for name, said, _ in record.hosts.jobs}.get(mesh.name)
    per_host = {label: size for label, size in mesh.sizes.items() if label != HOSTS}
    return wanted is not None and Wanted.from_json(wanted) == hosts and per_host == dict(sizes)


def find(records: Sequence[KeptRecord], name: str | None) -> KeptRecord:
    """Return the record of a mesh, or the only one; one that nobody drives before one that another
    kernel drives. Raises `MagicError`."""
    if not records:
        raise MagicError(NOTHING)
    wanted = [each for each in records if name is None or name in [m.name for m in each.meshes]]
    # one that nobody drives is meant: notebooks have meshes of the same name
    wanted = [each for each in wanted if not each.is_driven()] or wanted
    if not wanted:
        there = ", ".join(map(names, records))
        raise MagicError(f"no mesh {name!r} is kept. There are: {there}")
    if len(wanted) > 1 and name is None:
        first = quoted(wanted[0])
        there = "; ".join(map(names, wanted))
        raise MagicError(f"Which? Kept are {there}. Type: %mesh attach {first}")
    return wanted[0]


def end(control: Control, name: str | None) -> str:
    """End the meshes of a record without attaching them; the line that says so."""
    record = find(control.kept_meshes(), name)
    if record.is_driven():
        raise MagicError(
            f"{names(record)} is driven by process {record.controller_pid}: end it there, or take "
            f"it away from that first: %mesh attach {quoted(record)} --fence"
        )
    control.end_kept(record)
    return f"{names(record)} {are(record.meshes)} ended"
