"""Machines, a Slurm cluster, sshd: skipped, with what is missing, where they cannot be had."""

from collections.abc import Iterator

import pytest

from tests.clusters.machines import Machines


@pytest.fixture(scope="module")
def can_have_machines(needs) -> None:
    needs("root", "machines")


@pytest.fixture
def machines(can_have_machines) -> Iterator[Machines]:
    """`[one, two] = machines(2)`; see `Machines.__call__` for what they can be."""
    with Machines() as made:
        yield made
