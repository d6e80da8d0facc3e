"""What a person types to run a notebook, and reads afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode, v4

from monarch_nb.control.batch import run_record
from monarch_nb.control.batch.run_record import RunRecord
from tests.support import eventually

COMMAND = [sys.executable, "-m", "monarch_nb.control.cli"]
READY_S = 60


def typed(*words: object, **options: Any) -> tuple[int, str, str]:
    """A command, to its end: exit code, output, errors."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


def refused(*words: object) -> str:
    """A mistake, which is one line."""
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    assert err.startswith("monarch-nb: ")
    assert err.count("\n") == 1, err
    return err.removeprefix("monarch-nb: ").strip()


def notebook(path: Path, *cells: str | NotebookNode, kernel: str | None = "monarch") -> Path:
    """A notebook of these cells."""
    nodes = [v4.new_code_cell(each) if isinstance(each, str) else each for each in cells]
    made = v4.new_notebook(cells=nodes)
    if kernel is not None:
        made.metadata.kernelspec = {"name": kernel, "display_name": kernel}
    nbformat.write(made, path)
    return path


def tagged(source: str, tag: str) -> NotebookNode:
    return v4.new_code_cell(source, metadata={"tags": [tag]})


def start(path: Path, *words: object) -> RunRecord:
    """A run that nobody follows."""
    code, out, err = typed("run", path, "--no-follow", *words)
    assert (code, err) == (0, "")
    found = run_record.find(out.split()[0])
    assert found is not None
    return found


def executed(path: Path | str) -> NotebookNode:
    """The notebook as it is by now."""
    return nbformat.read(path, as_version=4)


def shown(path: Path | str, index: int) -> str:
    """The texts below a cell."""
    texts = []
    for output in executed(path).cells[index].outputs:
        kind = output.output_type
        if kind == "stream":
            texts.append(output.text)
        elif kind == "error":
            texts.append(f"{output.ename}: {output.evalue}\n")
        else:
            texts.append(output.data["text/plain"] + "\n")
    return "".join(texts)


def until_shown(path: Path | str, index: int, text: str) -> None:
    """Wait until the file has the text below that cell."""

    def is_shown() -> bool:
        return Path(path).exists() and text in shown(path, index)

    eventually(is_shown, READY_S, f"{text!r} below cell {index}")
