"""The sweep, where ranks wait in collectives of torch.distributed: hosts have torch loaded here."""

import pytest

from tests.testing.deeds import cases, harm

NIGHTLY = ("collective.wait-slow", "collective.wait-stop")


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("at, action", cases(["collective.wait"], NIGHTLY))
def test_a_rank_is_harmed_in_a_collective(spawn, at, action):
    harm(spawn, at, action)
