"""Notebooks of the repository: run as a reader would, and read as one."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LIMIT_S = 60

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PLACES = (
    r"/root/", r"/home/", r"/tmp/(?!ipykernel_|mnb-)", r"\bhttps?://(?!github\.com)",
)  # fmt: skip


def text_of(cell: Any) -> str:
    """All that a reader sees below a cell, without colours."""
    parts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append("\n".join(output.traceback) + "\n")
        else:
            parts.append(output.data["text/plain"] + "\n")
    return COLOURS.sub("", "".join(parts))


def find(notebook: Any, source: str) -> Any:
    """The one code cell that contains the source."""
    (cell,) = (
        cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source
    )
    return cell


def shown_by(notebook: Any) -> Callable[[str], str]:
    """What the one cell with a source shows."""
    return lambda source: text_of(find(notebook, source))


Lines = Iterable[tuple[str, str]]


class TypingClient(NotebookClient):
    """A front end with somebody who types: `lines` at the prompts of a cell, by its text; each
    beside what the cell shows before that is typed."""

    def __init__(self, *args: Any, lines: Mapping[str, Lines], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lines = {source: iter(typed) for source, typed in lines.items()}
        self._shown = asyncio.Event()

    def process_message(self, *args: Any) -> Any:
        done = super().process_message(*args)
        self._shown.set()
        return done

    async def async_execute_cell(self, cell: Any, *args: Any, **options: Any) -> Any:
        self.kc.allow_stdin = cell.source in self._lines
        self.coalesce_streams = not self.kc.allow_stdin  # it would move what was typed to the end
        typing = asyncio.ensure_future(self._type(cell))
        try:
            return await super().async_execute_cell(cell, *args, **options)
        finally:
            typing.cancel()
            if self.kc.allow_stdin:
                cell.outputs = _joined(cell.outputs)

    async def _type(self, cell: Any) -> None:
        while self.kc.allow_stdin:
            try:
                asked = await self.kc.get_stdin_msg(timeout=0.2)
            except Empty:
                continue
            seen, line = next(self._lines[cell.source])
            while seen not in text_of(cell):  # the prompt comes on another channel
                self._shown.clear()
                await self._shown.wait()
            text = f"{asked['content']['prompt']} {line}\n"  # as JupyterLab keeps it
            cell.outputs.append(nbformat.v4.new_output("stream", name="stdin", text=text))
            self.kc.input(line)


def _joined(outputs: Iterable[Any]) -> list[Any]:
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and output.name == last.get("name"):
            last.text += output.text
        else:
            joined.append(output)
    return joined


def execute(
    path: Path, folder: Path | None = None, lines: Mapping[str, Lines] | None = None
) -> Any:
    """The notebook, run without a browser. A cell that fails unexpectedly raises.

    `lines`: what is typed at the prompts of a cell, see `TypingClient`.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    resources = {} if folder is None else {"metadata": {"path": str(folder)}}
    TypingClient(
        notebook,
        lines=lines or {},
        kernel_name="monarch",
        timeout=LIMIT_S,
        coalesce_streams=True,
        record_timing=False,
        resources=resources,
    ).execute()
    return notebook


def check_committed(path: Path, executed: Any, *, but: tuple[str, ...] = ()) -> None:
    """The same cells fail and show as in the repository; no output is missing or left over.

    `but` names cells whose output may come a cell later.
    """
    committed = nbformat.read(path, as_version=4)
    nbformat.validate(committed)
    assert committed.metadata.kernelspec.name == "monarch"
    for old, new in zip(committed.cells, executed.cells, strict=True):
        if old.cell_type != "code":
            continue
        assert old.execution_count == new.execution_count
        assert "execution" not in old.metadata
        if not any(word in old.source for word in but):
            kinds = [[output.output_type for output in cell.outputs] for cell in (old, new)]
            assert kinds[0] == kinds[1], old.source


def places(path: Path) -> list[str]:
    """What in it belongs to the machine on which it was run."""
    return [place for place in PLACES if re.search(place, path.read_text())]
