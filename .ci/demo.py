"""Run a notebook on the Monarch kernel without a browser, cell by cell, and print what happens.

Usage: demo.py [NOTEBOOK] [--write FILE]      (default: notebooks/tour.ipynb)

A cell tagged `raises-exception` is expected to fail. Any other failure ends the run, exit code 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax
from rich.text import Text
from traitlets.config import Config

ROOT = Path(__file__).parent.parent
KERNEL = "monarch"
CELL_TIMEOUT_S = 300
EXPECTED = "raises-exception"

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """The exit code: 0 when every cell did what it was meant to do."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("notebook", nargs="?", type=Path, default=ROOT / "notebooks/tour.ipynb")
    parser.add_argument("--write", type=Path, help="write the executed notebook to this file")
    args = parser.parse_args()
    if not args.notebook.is_file():
        console.print(f"{args.notebook} is not there", style="red", markup=False)
        return 2
    notebook = nbformat.read(args.notebook, as_version=4)
    try:
        problems = run(notebook, args.notebook.parent)
    except (NoSuchKernel, RuntimeError) as error:  # raised while the kernel starts
        problems = [f"the kernel `{KERNEL}` did not start: {error}"]
    if args.write:
        nbformat.write(notebook, args.write)
    for problem in problems:
        console.print(problem, style="bold red", markup=False)
    return 1 if problems else 0


def run(notebook: Any, folder: Path) -> list[str]:
    """Execute and print; what went otherwise than meant, one line each."""
    resources = {"metadata": {"path": str(folder)}}
    config = Config({"KernelManager": {"transport_encryption": "auto"}})
    client = NotebookClient(
        notebook,
        kernel_name=KERNEL,
        timeout=CELL_TIMEOUT_S,
        coalesce_streams=True,  # one text, as a browser shows it
        record_timing=False,  # no times in what --write writes
        resources=resources,
        config=config,
    )
    started = time.monotonic()
    cells = 0
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown":
                print_heading(cell.source)
            elif cell.cell_type == "code" and cell.source.strip():
                cells += 1
                if problem := run_cell(client, cell, index):
                    return [problem]
        client.set_widgets_metadata()
    console.print(f"\n[green]{cells} cells in {time.monotonic() - started:.1f} s[/]")
    return []


def run_cell(client: NotebookClient, cell: Any, index: int) -> str | None:
    """Execute one cell, print source and outputs; say what went otherwise than meant, or None."""
    console.print(f"\nIn [{index}]", style="dim", markup=False)
    console.print(Syntax(cell.source, "python", theme="ansi_dark", background_color="default"))
    failure: str | None = None
    try:
        client.execute_cell(cell, index)
    except CellExecutionError as error:
        failure = f"cell {index} failed: {error.ename}: {error.evalue}"
    except (CellTimeoutError, DeadKernelError) as error:
        failure = f"cell {index}: {error}"
    for output in cell.outputs:
        print_output(output)
    tagged = EXPECTED in cell.metadata.get("tags", [])
    if failure is None and tagged and not any(o.output_type == "error" for o in cell.outputs):
        return f"cell {index} is tagged {EXPECTED} and did not fail"
    return failure


def print_heading(source: str) -> None:
    """The headings of a markdown cell."""
    for line in source.splitlines():
        if line.startswith("#"):
            console.print()
            console.print(Markdown(line))


def print_output(output: Any) -> None:
    """A cell's output as text, with its colours."""
    if output.output_type == "stream":
        text = output.text
    elif output.output_type == "error":
        text = "\n".join(output.traceback)
    else:
        text = output.data.get("text/plain", f"<{', '.join(output.data)}>")
    console.print(Text.from_ansi(text.rstrip("\n")))


if __name__ == "__main__":
    sys.exit(main())
