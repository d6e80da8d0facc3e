"""What a word behind `--on` names that is no engine: a profile, or a job that is applied."""

from __future__ import annotations

import contextlib

from monarch_nb.control.engines import APPLIED, NAMED
from monarch_nb.control.jobs import profiles
from monarch_nb.control.jobs.kept import records
from monarch_nb.control.jobs.kept.records import Record
from monarch_nb.control.jobs.kept.visiting import AskError, answer, visit
from monarch_nb.errors import MeshError


def words_of(name: str) -> list[str]:
    """Return it as a person would type it: `--on slurm --hosts 4`. Raises `KeyError` for one that
    is not there, `ValueError` for one that makes no sense."""
    with contextlib.suppress(KeyError):
        return profiles.words_of(name)
    if records.find(name.partition(":")[0]) is None:
        raise KeyError(name)
    record, mesh = held(name)
    return [f"--on={APPLIED}", f"--job={name}", f"--hosts={_sizes(record)[mesh]}", "--"]


def held(name: str) -> tuple[Record, str]:
    """Return a job that is applied, and its mesh that is meant by `NAME` or `NAME:MESH`. Raises
    `ValueError`."""
    job, _, mesh = name.partition(":")
    if (record := records.find(job)) is None:
        raise ValueError(f"there is no job {job!r}; applied: {_applied()}")
    meshes = _sizes(record)
    if not mesh and len(meshes) == 1:
        return record, next(iter(meshes))
    if mesh not in meshes:
        raise ValueError(f"{job} has the meshes {', '.join(meshes)}. Type: --on {job}:MESH")
    return record, mesh


def known() -> str:
    """Say which names there are."""
    own = ", ".join(profiles.names()) or "none"
    applied = f"; jobs of monarch-nb apply: {_applied()}"
    return f"Engines: {', '.join(NAMED)}; profiles of {profiles.file()}: {own}{applied}"


def applied() -> list[str]:
    """Return the names of jobs that are applied; none where they cannot be read."""
    with contextlib.suppress(MeshError):
        return [each.name for each in records.all_records()]
    return []


def _applied() -> str:
    return ", ".join(applied()) or "none"


def _sizes(record: Record) -> dict[str, int]:
    try:
        with visit(record) as stream:
            meshes: dict[str, int] = answer(stream, record, {"do": "status"})["said"]["meshes"]
    except AskError as error:
        raise ValueError(str(error)) from None
    return meshes
