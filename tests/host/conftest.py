"""An agent and what it says."""

from __future__ import annotations

import pytest

from tests.host.support import host


@pytest.fixture
def agent():
    with host() as made:
        yield made
