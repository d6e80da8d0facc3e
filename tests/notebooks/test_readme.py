"""Every example of the README and of docs/groups.md runs as a reader would run it, and shows what
the page says."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.client import KernelClient
from tests.source import ROOT

README = ROOT / "README.md"
GROUPS = ROOT / "docs" / "groups.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAITING = re.compile(r"mesh\d+: waiting for ranks? [\d, -]+, [\d.]+ s$")

pytestmark = pytest.mark.timeout(120)


@dataclass
class Example:
    """A cell of the README and what it shows, if that is told."""

    source: str
    shown: str | None = None


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
    """Equal lines may come apart on a busy machine: `[0-1] x` is `[0] x` and `[1] x`. How long a
    cell waits there is not what it shows."""
    found = []
    for line in text.splitlines():
        if WAITING.match(line):
            continue
        label = re.match(r"\[(\d+)-(\d+)\] ", line)
        ranks = range(int(label[1]), int(label[2]) + 1) if label else ()
        found += [f"[{rank}] {line[label.end() :]}" for rank in ranks] or [line]
    return sorted(found)


@pytest.mark.parametrize("page, number", [(README, 5), (GROUPS, 7)])
def test_the_examples_run_in_turn(page, number):
    cells = examples(page)
    assert len(cells) == number
    with KernelClient("monarch") as kernel:
        for example in cells:
            cell = kernel.run(example.source, timeout_s=60)
            fails = "Traceback" in (example.shown or "")
            assert cell.status == ("error" if fails else "ok"), cell.shown
            if example.shown is not None:
                assert lines_by_rank(cell.shown) == lines_by_rank(example.shown)


@pytest.mark.parametrize("name", ["cells", "actors"])
def test_examples_are_short(name):
    """What a reader takes in at one look."""
    section = README.read_text().partition(f"## {name.capitalize()}\n")[2].partition("\n## ")[0]
    longest = max(len(body.splitlines()) for language, body in FENCE.findall(section))
    assert longest <= 16


def test_commands_exist():
    targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make (\w+)", README.read_text())) <= set(targets)
