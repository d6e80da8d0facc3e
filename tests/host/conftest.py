"""An agent and what it says."""

import pytest

from tests.host.support import host


@pytest.fixture
def agent():
    with host() as made:
        yield made
