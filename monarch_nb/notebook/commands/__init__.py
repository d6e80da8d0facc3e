"""The commands of `%mesh`, in the order of the help.

Rule of the package: a command is a few words that call something else; what it prints is one line.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import Final

from monarch_nb.notebook import options
from monarch_nb.notebook.commands import (
    auto,
    debug,
    logs,
    scripts,
    status,
    stopping,
    variables,
)
from monarch_nb.notebook.commands.command import Command
from monarch_nb.notebook.errors import MagicError

COMMANDS: Final[dict[str, Command]] = {
    "up": status.UP,
    "down": status.DOWN,
    "list": status.LIST,
    "use": status.USE,
    "show": status.SHOW,
    "status": status.STATUS,
    "heal": status.HEAL,
    "restart": status.RESTART,
    "put": variables.PUT,
    "get": variables.GET,
    "run": scripts.RUN,
    "auto": auto.AUTO,
    "logs": logs.LOGS,
    "errors": logs.ERRORS,
    "interrupt": stopping.INTERRUPT,
    "stacks": stopping.STACKS,
    "debug": debug.DEBUG,
    "pm": debug.PM,
    "pdb": debug.PDB,
    "clear": debug.CLEAR,
    "debugger": debug.DEBUGGER,
    "collectives": stopping.COLLECTIVES,
    "regroup": stopping.REGROUP,
}


def parse_line(line: str) -> tuple[Command, argparse.Namespace]:
    """Return the command of a `%mesh` line and its options; `status` for an empty line."""
    word, rest = [*line.split(maxsplit=1), "", ""][:2]
    command = COMMANDS.get(word or "status")
    if command is None:
        raise MagicError(_unknown(word))
    return command, options.parse(command.parser, rest)


def help_text(names: Iterable[str] = COMMANDS) -> str:
    """Return a line for everything that may be typed after `%mesh`, or of these commands."""
    lines = [
        (typed if typed.startswith(" ") else f"%mesh {typed}", does)
        for name in names
        for typed, does in COMMANDS[name].usage
    ]
    width = max(len(typed) for typed, _ in lines)
    return "\n".join(f"{typed:{width}}  {does}" for typed, does in lines)


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word.lower(), options.COMMANDS, 1)
    hint = f"Did you mean %mesh {close[0]}? " if close else ""
    known = ", ".join(options.COMMANDS)
    return f"%mesh has no command {word!r}. {hint}Commands: {known}; %mesh? shows help"
