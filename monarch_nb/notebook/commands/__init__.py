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
    hosts,
    keeping,
    logs,
    scripts,
    starting,
    status,
    stopping,
    variables,
)
from monarch_nb.notebook.commands.command import Command
from monarch_nb.notebook.errors import MagicError

MIN_LIKENESS: Final = 0.7  # of a word that was meant; 0.6 takes `stop` for `show`

COMMANDS: Final[dict[str, Command]] = {
    "up": starting.UP,
    "down": starting.DOWN,
    "list": status.LIST,
    "use": status.USE,
    "show": status.SHOW,
    "status": status.STATUS,
    "scale": starting.SCALE,
    "heal": starting.HEAL,
    "restart": starting.RESTART,
    "keep": keeping.KEEP,
    "attach": keeping.ATTACH,
    "jobs": hosts.JOBS,
    "hosts": hosts.HOSTS,
    "script": hosts.SCRIPT,
    "shell": hosts.SHELL,
    "doctor": hosts.DOCTOR,
    "put": variables.PUT,
    "get": variables.GET,
    "vars": variables.VARS,
    "run": scripts.RUN,
    "replay": scripts.REPLAY,
    "auto": auto.AUTO,
    "logs": logs.LOGS,
    "errors": logs.ERRORS,
    "watch": logs.WATCH,
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


GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Meshes": (
        "up",
        "down",
        "list",
        "use",
        "show",
        "status",
        "scale",
        "heal",
        "restart",
        "keep",
        "attach",
    ),
    "Hosts": ("jobs", "hosts", "script", "shell", "doctor"),
    "Variables and scripts": ("put", "get", "vars", "run", "replay", "auto"),
    "Logs and errors": ("logs", "errors", "watch"),
    "Ranks that hang": ("interrupt", "stacks", "collectives", "regroup"),
    "Debuggers": ("debug", "pm", "pdb", "clear", "debugger"),
}
"""The commands below the headings of the help."""

_MEANT: Final = {
    "start": "up", "create": "up", "init": "up", "new": "up", "spawn": "up", "stop": "down",
    "shutdown": "down", "kill": "interrupt --kill", "reset": "restart", "push": "put",
    "pull": "get", "ps": "status", "ls": "list", "log": "logs", "error": "errors",
}  # fmt: skip
"""Words of other programs, which a likeness of letters would lead astray."""


def parse_line(line: str) -> tuple[Command, argparse.Namespace]:
    """Return the command of a `%mesh` line and its options; `status` for an empty line."""
    word, rest = [*line.split(maxsplit=1), "", ""][:2]
    command = COMMANDS.get(word or "status")
    if command is None:
        raise MagicError(_unknown(word))
    return command, options.parse(command.parser, rest)


def whole_help() -> str:
    """Return a line for everything that may be typed after `%mesh`, below headings."""
    return "\n\n".join(f"{heading}\n{help_text(names)}" for heading, names in GROUPS.items())


def help_text(names: Iterable[str] = COMMANDS) -> str:
    """Return a line for everything that may be typed of these commands."""
    lines = [
        (typed if typed.startswith(" ") else f"%mesh {typed}", does)
        for name in names
        for typed, does in COMMANDS[name].usage
    ]
    width = max(len(typed) for typed, _ in lines)
    return "\n".join(f"{typed:{width}}  {does}" for typed, does in lines)


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word.lower(), options.COMMANDS, 1, MIN_LIKENESS)
    meant = _MEANT.get(word.lower()) or "".join(close)
    hint = f"Did you mean %mesh {meant}? " if meant else ""
    known = ", ".join(options.COMMANDS)
    return f"%mesh has no command {word!r}. {hint}Commands: {known}; %mesh? shows help"
