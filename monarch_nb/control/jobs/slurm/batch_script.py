"""What Slurm is given: the options of a job, its batch script, and the command that starts hosts.

Pure. Rule: an option that nobody asked for is not there. The ticket is named by its path only.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

_WITHIN_S: Final = 30
_HOST: Final = (
    'exec "$0" -P -m monarch_nb.host.join --index "$SLURM_PROCID" --ticket "$1" '
    f"--within {_WITHIN_S}"
)
_ONE_ON_EACH_NODE: Final = (
    "--ntasks-per-node=1",
    "--kill-on-bad-exit=0",  # one that ends takes no other with it, whatever the site's default
    "--wait=0",
    "--no-kill",
    "--cpu-bind=none",  # to all processors of the job there: the host shares them out
    "--label",  # so that the words of each can be told apart
)


def options_of(asked: Mapping[str, object], more: Sequence[str]) -> list[str]:
    """Return options as Slurm writes them: `time_limit` None or False is left out, True stands
    alone.

    Raises `ValueError` for one that is none, or that would be more than one line.

    Example:
        >>> options_of({"nodes": 2, "mem": None, "gpus_per_node": 8}, ["--constraint=ib"])
        ['--nodes=2', '--gpus-per-node=8', '--constraint=ib']
    """
    found = []
    for name, value in asked.items():
        if value is None or value is False:
            continue
        option = f"--{name.replace('_', '-')}"
        found.append(option if value is True else f"{option}={value}")
    for each in [*found, *more]:
        if not each.startswith("-") or "\n" in each or "\0" in each:
            raise ValueError(f"{each!r} is no option of Slurm: write it as '--constraint=ib'")
    return [*found, *more]


def output_option(path: str) -> str:
    """Return what names the file for the output, in which Slurm replaces `%j` and its like.

    Example:
        >>> output_option("/home/u/100%")
        '--output=/home/u/100%%'
    """
    return f"--output={path.replace('%', '%%')}"


def hosts_command(count: int, python: str, ticket: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts so many hosts, each on a node, in an allocation.

    The number of a host is that of its task.
    """
    tasks = [f"--nodes={count}", f"--ntasks={count}", *_ONE_ON_EACH_NODE]
    return ["srun", *options, *tasks, "sh", "-c", _HOST, python, ticket]


def batch_script(options: Sequence[str], command: Sequence[str]) -> str:
    """Return the script for sbatch."""
    lines = [f"#SBATCH {shlex.quote(each)}" for each in options]
    return "\n".join(["#!/bin/sh", *lines, f"exec {shlex.join(command)}", ""])
