"""The notebook of a run: read, given its parameters, written while it runs.

Rule of the file: what is written is complete at any time: a draft beside it takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import nbformat
from nbformat import NotebookNode

from monarch_nb.control.batch import parameters

_TAG, _INJECTED = "parameters", "injected-parameters"
_CODE: Final = "code"
_TITLE: Final = 70
"""Characters of a cell's first line, at most."""


def read(path: Path) -> NotebookNode:
    """Return a notebook, as the newest format of today has it. Raises `ValueError` where there is
    none."""
    try:
        found: NotebookNode = nbformat.v4.upgrade(nbformat.read(path, as_version=4))
        nbformat.validate(found)
    except FileNotFoundError:
        raise ValueError(f"there is no notebook {path}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        raise ValueError(f"{path} is no notebook: {str(error).partition(chr(10))[0]}") from None
    return found


def prepare(notebook: NotebookNode, given: Mapping[str, Any]) -> None:
    """Take away what cells have shown in another run, and have a cell assign the parameters: below
    the one that is tagged `parameters`, or first. Raises `ValueError` for a name that this has not.
    """
    cells = [cell for cell in notebook.cells if _INJECTED not in _tags(cell)]  # of another run
    for cell in cells:
        if cell.cell_type == _CODE:
            cell.outputs, cell.execution_count = [], None
    if given:
        places = [n for n, each in enumerate(cells) if _TAG in _tags(each) and is_code(each)]
        theirs = cells[places[0]].source if places else None
        if theirs is not None:
            parameters.check(given, theirs)
        text = parameters.source(given, theirs or "")
        injected = nbformat.v4.new_code_cell(text, metadata={"tags": [_INJECTED]})
        cells.insert(places[0] + 1 if places else 0, injected)
    notebook.cells = cells


def is_code(cell: NotebookNode) -> bool:
    """Tell whether it is a cell that runs: code, and some of it."""
    return bool(cell.cell_type == _CODE and cell.source.strip())


def title(cell: NotebookNode) -> str:
    """Return the line by which people know a cell."""
    lines = [line for line in str(cell.source).splitlines() if line.strip()]
    shown = lines[: 2 if lines[0].startswith("%%") else 1]
    text = " / ".join(shown)[:_TITLE]
    return text + (" ..." if len(lines) > len(shown) or len(text) == _TITLE else "")


def write(notebook: NotebookNode, path: Path) -> None:
    """Put it there, in the place of what was. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(nbformat.writes(_compact(notebook)) + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _compact(notebook: NotebookNode) -> NotebookNode:
    # As a page keeps it: what follows on one stream is one text
    cells = [
        NotebookNode({**cell, "outputs": _joined(cell.outputs)})
        if cell.cell_type == _CODE
        else cell
        for cell in notebook.cells
    ]
    return NotebookNode({**notebook, "cells": cells})


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    joined: list[NotebookNode] = []
    texts: list[str] = []
    for output in outputs:
        if output.output_type != "stream":
            joined.append(output)
        elif joined and joined[-1].get("name") == output.name:
            texts.append(output.text)
            continue
        else:
            joined.append(NotebookNode(output))
            texts = joined[-1].text = [output.text]
    for output in joined:
        if output.output_type == "stream":
            output.text = _seen("".join(output.text))
    return joined


def _seen(text: str) -> str:
    # of lines that go back to their start: a progress bar is its last state
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _tags(cell: NotebookNode) -> list[str]:
    tags: list[str] = cell.metadata.get("tags", [])
    return tags
