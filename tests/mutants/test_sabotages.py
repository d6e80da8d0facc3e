"""The list of sabotages is true: each line is there once, and so are the tests."""

import pytest

from tests.mutants.sabotage import Sabotage
from tests.mutants.sabotages import SABOTAGES
from tests.source import ROOT


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.name)
def test_the_line_stands_once_and_its_tests_are_there(sabotage: Sabotage) -> None:
    assert (ROOT / sabotage.file).read_text().count(sabotage.old) == 1
    assert sabotage.new != sabotage.old
    for test in sabotage.tests.split():
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        name = name.partition("[")[0]
        assert not name or f"def {name}(" in (ROOT / path).read_text(), test


def test_names_are_different() -> None:
    assert len({each.name for each in SABOTAGES}) == len(SABOTAGES)
