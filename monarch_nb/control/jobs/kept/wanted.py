"""What `monarch-nb apply` is asked for: a job in a Python file, or hosts of an engine.

Rule: a file runs only if a person has named it, in the process that holds the job.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.control import engines
from monarch_nb.control.engines import ENGINES, NAMED, UNTYPED, Wanted
from monarch_nb.control.jobs import profiles
from monarch_nb.control.jobs.kept import naming

if TYPE_CHECKING:
    from monarch_nb.control.jobs.job import JobTrait

MESH: Final = "hosts"
"""The name of the one mesh of hosts that were not asked for in Python."""
_JOB: Final = "job"
_OPTIONS: Final = tuple(dict.fromkeys(o for engine in ENGINES.values() for o in engine.options))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `read` reads."""
    parser.add_argument("spec", nargs="?", metavar="FILE.py[:NAME]", help="a job in a Python file")
    add_hosts_options(parser)
    parser.add_argument("--gpus", type=int, help="of each host")


def add_hosts_options(parser: argparse.ArgumentParser) -> None:
    """Add those that say which hosts, and not how many ranks each has."""
    parser.add_argument("--on", metavar="ENGINE", help=f"{', '.join(NAMED)}, a profile, or a job")
    parser.add_argument("--hosts", type=int, help="how many")
    for option in _OPTIONS:
        of = ", ".join(name for name, engine in ENGINES.items() if option in engine.options)
        hidden = argparse.SUPPRESS if option in UNTYPED else None
        parser.add_argument(f"--{option}", help=hidden or f"of {of}")


def read(chosen: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """Return what was asked for, as JSON. Raises `ValueError` for what cannot be."""
    if (chosen.spec is None) == (chosen.on is None):
        raise ValueError("name a file, as jobs.py, or an engine, as --on ssh:node1,node2")
    if chosen.spec is not None:
        path, _, name = chosen.spec.partition(":")
        if not Path(path).is_file():
            raise ValueError(f"there is no file {path}")
        return {"file": str(Path(path).absolute()), "name": name or _JOB}
    word = chosen.on.partition(":")[0]
    if word not in ENGINES:
        return _of_profile(chosen, words)
    return {"wanted": list(_wanted(chosen, words))}


def _of_profile(chosen: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    try:
        said = naming.words_of(chosen.on)
    except KeyError:
        raise ValueError(f"there is no engine or profile {chosen.on!r}. {naming.known()}") from None
    place = said.index("--")
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_options(parser)
    try:
        found, unknown = parser.parse_known_args(said[:place])
    except argparse.ArgumentError as error:
        raise ValueError(f"profile {chosen.on!r} of {profiles.file()}: {error}") from None
    if unknown or found.on.partition(":")[0] not in ENGINES:
        what = unknown[0] if unknown else f"--on {found.on}"
        raise ValueError(f"profile {chosen.on!r} of {profiles.file()} has {what}, which is unknown")
    typed = {name: value for name, value in vars(chosen).items() if value is not None}
    both = argparse.Namespace(**{**vars(found), **typed, "on": found.on})
    return {"wanted": list(_wanted(both, [*said[place + 1 :], *words]))}


def _wanted(chosen: argparse.Namespace, words: Sequence[str]) -> Wanted:
    engine, _, text = chosen.on.partition(":")
    places = tuple(filter(None, text.split(",")))
    values = ((name, getattr(chosen, name.replace("-", "_"))) for name in _OPTIONS)
    options = tuple((name, value) for name, value in values if value is not None)
    engines.check_places(engine, places)
    engines.check(engine, [name for name, _ in options], words)
    for name in ("hosts", "gpus"):
        if (count := getattr(chosen, name)) is not None and count < 1:
            raise ValueError(f"--{name} {count}: write a number of at least 1")
    hosts = chosen.hosts or len(places) or 1
    if places and hosts != len(places):
        raise ValueError(f"How many hosts? Both {hosts} and {len(places)} were asked for")
    return Wanted(engine, places, hosts, chosen.gpus or 0, options, tuple(words))


def typed(chosen: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """Return what of `add_hosts_options` was typed, as `%mesh up` reads it; nothing where it was
    nothing. Raises `ValueError` for what cannot be."""
    named = ("on", "hosts", *_OPTIONS)
    given = [(name, getattr(chosen, name.replace("-", "_"))) for name in named]
    found = [f"--{name}={value}" for name, value in given if value is not None]
    if chosen.on is None:
        if found or words:
            raise ValueError(f"{(*found, '--')[0].partition('=')[0]} is for --on ENGINE")
        return []
    read(argparse.Namespace(**{**vars(chosen), "spec": None, "gpus": None}), words)
    return [*found, *(["--", *words] if words else [])]


def words_of(asked: dict[str, Any]) -> str:
    """Say what was asked for."""
    if "file" in asked:
        return f"{asked['file']}:{asked['name']}"
    return _restored(asked).typed()


def make(asked: dict[str, Any]) -> JobTrait:
    """Return the job; runs its file. Raises `TypeError` where that has none, and what it raises."""
    if "file" not in asked:
        return engines.make(MESH, _restored(asked))
    from monarch_nb.control.jobs.job import JobTrait  # other commands do without all of the meshes

    file, name = Path(asked["file"]), asked["name"]
    sys.path.insert(0, str(file.parent))
    found = runpy.run_path(str(file), run_name="monarch_nb_spec").get(name)
    if not isinstance(found, JobTrait):
        what = "" if found is None else f", but {found!r:.60}"
        raise TypeError(f"{file} has no job {name!r}{what}. Write there: {name} = SlurmJob(...)")
    return found


def _restored(asked: dict[str, Any]) -> Wanted:
    engine, places, hosts, gpus, options, words = asked["wanted"]
    pairs = tuple((name, value) for name, value in options)
    return Wanted(engine, tuple(places), hosts, gpus, pairs, tuple(words))
