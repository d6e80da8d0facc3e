"""Nobody can have a process harm itself that was not started for tests."""

import sys

import pytest

from monarch_nb import this_host
from monarch_nb.config import Config
from monarch_nb.testing import faults


@pytest.mark.parametrize("at", ["step", "call.begin", "agent.stop", "rank.started"])
def test_ranks_and_agents_refuse_faults(mesh, at):
    harmed = this_host() if at in {"agent.stop", "rank.started"} else mesh.procs
    with pytest.raises(RuntimeError, match="was not started for tests: set MONARCH_NB_TESTING=1"):
        faults.inject(harmed, at=at, action=faults.kill())
    assert set(mesh.workers.echo.call(at).get(timeout=20).values()) == {at}


def test_ranks_do_not_even_load_what_would_do_it(mesh):
    loaded = mesh.procs.execute(lambda: [name for name in sys.modules if "nb.testing.s" in name])
    assert set(map(tuple, loaded.values())) == {()}


def test_the_switch_is_off_unless_somebody_sets_it():
    assert not Config.from_environ({}).testing
    assert not Config.from_environ({"MONARCH_NB_TESTING": "0"}).testing
    assert Config.from_environ({"MONARCH_NB_TESTING": "1"}).testing
    with pytest.raises(ValueError, match="MONARCH_NB_TESTING='yes' is neither 0 nor 1"):
        Config.from_environ({"MONARCH_NB_TESTING": "yes"})
