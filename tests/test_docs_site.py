"""The site of `make docs`: each page is reachable, and the reference leaves nothing out."""

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb.config import Config
from monarch_nb.notebook import commands, options
from tests.source import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FACTS = re.compile(r"^```\{facts\} (\w+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def facts():
    spec = importlib.util.spec_from_file_location("facts", DOCS / "_ext" / "facts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FACTS


def below(page: Path) -> Iterator[Path]:
    """The pages that a page's toctrees name."""
    for body in TOCTREE.findall(page.read_text()):
        for line in body.splitlines():
            if line.strip() and not line.startswith(":"):
                target = re.sub(r"^.* <(.*)>$", r"\1", line)  # a title may stand before it
                folder = (page.parent / target).parent.resolve()
                yield from folder.glob(f"{Path(target).name}.md")
                yield from folder.glob(f"{Path(target).name}.ipynb")


def test_each_page_can_be_reached():
    found, new = set(), {DOCS / "index.md"}
    while new:
        found |= new
        new = {each for page in new if page.suffix == ".md" for each in below(page)} - found
    pages = {*DOCS.rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")}
    missing = {page for page in pages - found if "_build" not in page.parts}
    assert not missing, f"no toctree leads to {sorted(missing)}"


def test_all_facts_are_told(facts):
    told = [name for page in REFERENCE.glob("*.md") for name in FACTS.findall(page.read_text())]
    assert sorted(told) == sorted(facts)


def test_each_command_is_in_the_reference(facts):
    page = facts["mesh"]()
    for name, command in commands.COMMANDS.items():
        assert f"### `%mesh {name}`" in page
        for typed, _ in command.usage:
            assert typed.strip().replace("|", "\\|") in page
    for option in ("--keep TIME", "--on ENGINE", "--revoke HOST"):
        assert f"`{option}`" in page
    assert "SUPPRESS" not in page


def test_each_option_of_a_cell_is_told():
    page = (REFERENCE / "magics.md").read_text()
    known = set(re.findall(r"(?<=\s)--?[a-z-]+", options.CELL.format_help())) - {"-h", "--help"}
    missing = known - set(re.findall(r"(?<=`)--?[a-z-]+", page))
    assert known > {"-a", "--noblock", "--timeout"}
    assert not missing, f"the table of options leaves out {missing}"


def test_each_setting_is_in_the_reference(facts):
    rows = facts["settings"]().splitlines()[2:]
    assert len(rows) == len(dataclasses.fields(Config))
    for field, row in zip(dataclasses.fields(Config), rows, strict=True):
        variable, default, words = row.strip("| ").split(" | ", 2)
        assert variable == f"`MONARCH_NB_{field.name.upper()}`"
        assert default == f"`{field.default!r}`"
        assert len(words) > 10


def test_each_command_of_the_terminal_is_in_the_reference(facts):
    page = facts["terminal"]()
    named = set(re.findall(r"`monarch-nb (\w+)", "".join(p.read_text() for p in DOCS.glob("*.md"))))
    assert {"run", "apply", "hosts", "debug"} <= named
    for word in named:
        assert f"## `monarch-nb {word}`" in page


def test_each_public_name_is_in_the_reference():
    page = (REFERENCE / "api.md").read_text()
    told = re.findall(r"^\.\. auto\w+:: monarch_nb\.(\w+)$", page, re.MULTILINE)
    assert sorted(told) == sorted({*monarch_nb.__all__} - {"__version__"})
    assert "`monarch_nb.__version__`" in page
