"""What the reference says of commands and settings, made from the objects that the kernel has.

`{facts} mesh`, `{facts} terminal` and `{facts} settings` in a page stand for the Markdown that
these functions return.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from monarch_nb.config import Config
from monarch_nb.control import cli
from monarch_nb.notebook import commands


def mesh() -> str:
    """Return a section for each command of `%mesh`."""
    return "\n".join(
        f"## {heading}\n\n" + "\n".join(map(_command, names))
        for heading, names in commands.GROUPS.items()
    )


def terminal() -> str:
    """Return a section for each command of `monarch-nb`."""
    [known] = [
        action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    does = {choice.dest: choice.help for choice in known._choices_actions}
    return "\n".join(
        f"## `monarch-nb {word}`\n\n{_sentence(does[word])}\n\n{_options(parser)}"
        for word, parser in known.choices.items()
    )


def settings() -> str:
    """Return a table of the settings, with what their docstrings say."""
    said = dict(_said_of_fields(Config))
    rows = [
        f"| `MONARCH_NB_{field.name.upper()}` | `{field.default!r}` | {said[field.name]} |"
        for field in dataclasses.fields(Config)
    ]
    return "\n".join(["| variable | default | |", "|---|---|---|", *rows])


FACTS: Final[dict[str, Callable[[], str]]] = {
    "mesh": mesh,
    "terminal": terminal,
    "settings": settings,
}


def _command(name: str) -> str:
    command = commands.COMMANDS[name]
    rows = [f"| {_code(_typed(typed))} | {_text(does)} |" for typed, does in command.usage]
    table = "\n".join(["| typed | does |", "|---|---|", *rows])
    own = command.parser
    return f"### `%mesh {name}`\n\n{table}\n\nFor example: {own.example}\n\n{_options(own)}"


def _typed(usage: str) -> str:
    return f"... {usage.strip()}" if usage.startswith(" ") else f"%mesh {usage}"


def _options(parser: Any) -> str:
    lines = [
        _option(action)
        for action in parser._actions
        if action.option_strings and action.dest != "help" and action.help != argparse.SUPPRESS
    ]
    return "\n".join([*lines, ""])


def _option(action: argparse.Action) -> str:
    takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    typed = ", ".join(f"`{word}{takes}`" for word in action.option_strings)
    return f"- {typed}: {_text(action.help)}" if action.help else f"- {typed}"


def _sentence(text: str | None) -> str:
    return f"{(text or '')[:1].upper()}{_text(text or '')[1:]}."


def _said_of_fields(owner: type) -> Iterator[tuple[str, str]]:
    # A string below a field is its docstring
    body = ast.parse(inspect.getsource(owner)).body[0].body
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            yield field.target.id, " ".join(below.value.value.split())


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("%%", "%").replace("<", "\\<")


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    from sphinx.util.docutils import SphinxDirective  # not needed for the words

    class Facts(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[Any]:
            text = FACTS[self.arguments[0]]()
            return self.parse_text_to_nodes(text, allow_section_headings=True)

    app.add_directive("facts", Facts)
    return {"parallel_read_safe": True}
