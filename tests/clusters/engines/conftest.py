"""One Ray cluster for all modules here: its start takes half a minute of two processors."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clusters.engines.ray_cluster import RayCluster, TooBusyError
from tests.support import eventually


@pytest.fixture(scope="package")
def cluster() -> Iterator[RayCluster]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(RayCluster())
        except TooBusyError as error:
            pytest.skip(str(error))
        yield made


@pytest.fixture
def no_host_stays(cluster: RayCluster) -> Iterator[None]:
    """What a test has started on the nodes is gone after it."""
    yield
    eventually(lambda: not cluster.hosts(), 20, lambda: f"no host is left: {cluster.hosts()}")
