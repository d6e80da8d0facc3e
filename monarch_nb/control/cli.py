"""The command `monarch-nb`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from monarch_nb.config import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. Returns the exit code."""
    parser = argparse.ArgumentParser("monarch-nb", description="Meshes of ranks, from a terminal.")
    parser.add_argument("--version", action="version", version=f"monarch-nb {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    debug = commands.add_parser("debug", help="the debugger of a running controller's ranks")
    debug.add_argument("--pid", type=int, help="of the controller, where several run")
    chosen = parser.parse_args(argv)
    from monarch_nb.control.debug import terminal

    return terminal.run(chosen.pid)


if __name__ == "__main__":
    raise SystemExit(main())
