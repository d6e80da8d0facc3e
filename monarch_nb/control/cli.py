"""The command `monarch-nb`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from monarch_nb.config import VERSION
from monarch_nb.control.batch import subcommands
from monarch_nb.control.hosts import known_workers
from monarch_nb.control.inspection import inspect_commands
from monarch_nb.control.jobs.kept import asking


class Parser(argparse.ArgumentParser):
    """A mistake is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. Type: {self.prog} --help\n")


def parser() -> Parser:
    """Return what reads its words."""
    whole = Parser("monarch-nb", description="Meshes of ranks, from a terminal.")
    whole.add_argument("--version", action="version", version=f"monarch-nb {VERSION}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    debug = commands.add_parser("debug", help="the debugger of a running controller's ranks")
    debug.add_argument("--pid", "--kernel", type=int, help="of the controller, where several run")
    debug.add_argument("--list", action="store_true", help="who is stopped, and nothing else")
    debug.add_argument("--json", action="store_true", help="for programs: docs/terminal.md")
    debug.set_defaults(run=None)
    inspect_commands.add_commands(commands)
    asking.add_commands(commands)
    subcommands.add_commands(commands)
    known_workers.add_commands(commands)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    place = words.index("--") if "--" in words else len(words)
    whole = parser()
    chosen = whole.parse_args(words[:place])
    if getattr(chosen, "list", False):
        chosen.run = inspect_commands.debug_list
    if chosen.run is not None:
        return asking.run(chosen, words[place + 1 :])
    if chosen.json:
        whole.error("debug --json goes with --list")
    from monarch_nb.control.debug import terminal

    return terminal.run(chosen.pid)


if __name__ == "__main__":
    raise SystemExit(main())
