"""The pages for readers: nothing half merged, no link to nowhere, lines that fit a screen."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import ROOT

MARKER = re.compile("^(<{7}|>{7}|[|]{7}) ", re.MULTILINE)
PATH = re.compile(r"`((?:[\w.]+/)+(?:\w+\.(?:py|js|ts))?)`")
HOMES = ["", "monarch_nb", "kernel", "labextension/src"]  # where a path of a page may begin
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]+))?\)")
MAX_WIDTH = 110

PAGES = [
    *(ROOT / each for each in ("README.md", "CONTRIBUTING.md", "tests/browser/stories.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def prose(page: Path) -> Iterator[str]:
    """The lines of a page but for code and tables."""
    is_code = False
    for line in page.read_text().splitlines():
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        if not is_code and not is_fence and not line.startswith("|"):
            yield line


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    seen: Counter[str] = Counter()
    found = set()
    for line in prose(page):
        if heading := re.match("#+ (.*)", line):
            plain = re.sub(r"[^\w\- ]", "", heading[1].lower()).strip().replace(" ", "-")
            found.add(f"{plain}-{seen[plain]}" if seen[plain] else plain)
            seen[plain] += 1
    return found


def test_nothing_is_half_merged():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    wrong = [
        str(path.relative_to(ROOT))
        for path in paths
        if path.is_file() and MARKER.search(path.read_bytes().decode(errors="ignore"))
    ]
    assert not wrong, f"conflict markers in {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    wrong = []
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{path}#{anchor}" if anchor else path)
    assert not wrong, f"dead links in {page.name}: {wrong}"


def test_dead_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# What it is, and why\n## Twice\n## Twice\n[a](#what-it-is-and-why)")
    assert anchors(page) == {"what-it-is-and-why", "twice", "twice-1"}
    assert LINK.findall("[a](b.md#c) [d](https://x.org/e) [f](#g)") == [("b.md", "c"), ("", "g")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    named = PATH.findall("\n".join(prose(page)))
    wrong = [path for path in named if not any((ROOT / home / path).exists() for home in HOMES)]
    assert not wrong, f"{page.name} names files that are not there: {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_fit_a_screen(page):
    long = [line for line in prose(page) if len(line) > MAX_WIDTH and not line.startswith("![")]
    assert not long, "\n".join(long)
