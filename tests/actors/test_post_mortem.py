"""What is kept of the last failures: for how long, and who may look into it meanwhile."""

import weakref

import pytest

from monarch_nb.actors.post_mortem import CELLS, LastFailures


class Big:
    """Held by the frame of what fails."""


@pytest.fixture
def failures():
    failures = LastFailures()
    failures.make_room(4)
    return failures


def fail(failures, origin=CELLS):
    """Fail in a frame that holds something; return the error, and what tells whether it does."""
    held = []

    def fails():
        big = Big()
        held.append(weakref.ref(big))
        raise ValueError

    try:
        fails()
    except ValueError as error:
        failures.seen(origin, error)
        return error, held[0]


def test_a_success_lets_go_of_what_frames_hold(failures):
    _, big = fail(failures)
    _, of_other = fail(failures, origin=7)
    failures.forget(CELLS)
    assert big() is None
    assert of_other() is not None


def test_what_is_forgotten_while_somebody_looks_goes_when_the_last_one_leaves(failures):
    error, big = fail(failures)
    with failures.looking_into(error):
        with failures.looking_into(error):
            failures.forget(CELLS)
        assert big() is not None
    assert big() is None


def test_what_was_looked_into_is_kept_until_it_is_forgotten(failures):
    error, big = fail(failures)
    with failures.looking_into(error):
        pass
    assert big() is not None
    failures.clear()
    assert big() is None
