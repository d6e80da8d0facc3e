"""A client whose hosts and ranks let tests harm them."""

from collections.abc import Iterator

import pytest

from monarch_nb import shutdown_context, this_host
from tests import support
from tests.conftest import SharedClient


@pytest.fixture(scope="module")
def mesh_runtime(shared_client: SharedClient) -> Iterator[None]:
    shared_client.stop()
    before = support.Snapshot.take(unmarked=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_TESTING", "1")
        first = this_host().spawn_procs()  # what the first one makes is no leak of a test
        first.initialized.get(timeout=60)
        first.stop().get(timeout=30)
        yield
        shutdown_context().get(timeout=30)
    before.assert_clean()


@pytest.fixture(autouse=True)
def failures(failures):
    """For every test here."""
    return failures
