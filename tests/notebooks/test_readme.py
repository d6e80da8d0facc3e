"""Every example of the README, the tutorial and other pages runs as a reader would run it, and
shows what the page says."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.client import KernelClient
from tests.source import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
NUMBERS = {
    README: 3,
    DOCS / "actors.md": 2,
    DOCS / "cells.md": 3,
    DOCS / "groups.md": 7,
    DOCS / "coming-from" / "dask.md": 4,
    DOCS / "coming-from" / "ipyparallel.md": 4,
    DOCS / "coming-from" / "monarch.md": 1,
    DOCS / "coming-from" / "nbdistributed.md": 3,
    DOCS / "coming-from" / "ray.md": 1,
    DOCS / "coming-from" / "torchrun.md": 2,
    TUTORIAL: 15,
}
"""How many examples a page has."""
MEANT_TO_FAIL = ("Traceback", "--timeout", "SIGKILL")  # in a cell or in what it shows
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAITING = re.compile(r"(mesh\d+: waiting for ranks? [\d, -]+, [\d.]+ s|waited [\d.]+ s)$")

pytestmark = pytest.mark.timeout(120)


@dataclass
class Example:
    """A cell of a page and what it shows, if that is told."""

    source: str
    shown: str | None = None

    @property
    def fails(self) -> bool:
        return any(word in self.source + (self.shown or "") for word in MEANT_TO_FAIL)


def examples(page: Path) -> list[Example]:
    found: list[Example] = []
    for language, body in FENCE.findall(page.read_text()):
        if language == "python":
            found.append(Example(body.rstrip("\n")))
        elif language == "text":
            assert found[-1].shown is None, "two outputs for one cell"
            found[-1].shown = body
    return found


def lines_by_rank(text: str) -> list[str]:
    """Equal lines may come apart on a busy machine: `[0,2-3] x` is `[0] x`, `[2] x`
    and `[3] x`. How long a cell waits there is not what it shows."""
    found = []
    for line in text.splitlines():
        if WAITING.match(line):
            continue
        label = re.match(r"\[([\d,-]+)\] ", line)
        runs = [run.split("-") for run in label[1].split(",")] if label else []
        ranks = [rank for run in runs for rank in range(int(run[0]), int(run[-1]) + 1)]
        found += [f"[{rank}] {line[label.end() :]}" for rank in ranks] or [line]
    return sorted(found)


def test_lines_of_ranks_come_apart():
    assert lines_by_rank("[0,2-3] x\ny") == ["[0] x", "[2] x", "[3] x", "y"]


@pytest.mark.parametrize("page", NUMBERS, ids=lambda page: page.stem)
def test_the_examples_run_in_turn(page):
    cells = examples(page)
    assert len(cells) == NUMBERS[page]
    with KernelClient("monarch") as kernel:
        for example in cells:
            cell = kernel.run(example.source, timeout_s=60)
            assert cell.status == ("error" if example.fails else "ok"), cell.shown
            if example.shown is not None:
                assert lines_by_rank(cell.shown) == lines_by_rank(example.shown)
            if "--timeout" in example.source:
                check_the_hang(cell)


def check_the_hang(cell):
    """What the tutorial says of it, in its own words."""
    [told] = re.findall(r"^    (⚠ .*) for \d s; (.*)$", TUTORIAL.read_text(), re.MULTILINE)
    warnings = [str(content["data"]) for content in cell.contents("update_display_data")]
    assert any(told[0] in warning and told[1] in warning for warning in warnings)
    assert cell.shown.startswith("[3] done\n")
    assert "dist.all_reduce(parameter.grad)" in cell.shown


@pytest.mark.parametrize("page", [README, DOCS / "cells.md", DOCS / "actors.md"])
def test_examples_are_short(page):
    """What a reader takes in at one look."""
    longest = max(len(body.splitlines()) for language, body in FENCE.findall(page.read_text()))
    assert longest <= 16


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) < 120


def test_commands_exist():
    targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    typed = re.findall(r"(?:`|^)make (\w+)", README.read_text(), re.MULTILINE)
    assert {"lab", "docs"} <= set(typed) <= set(targets)
