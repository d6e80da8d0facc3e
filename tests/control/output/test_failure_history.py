"""What is over of a failure, what is left, and what of it is kept."""

import pytest

from monarch_nb.control.output.failure_history import (
    MAX_PAST,
    Failure,
    FailureHistory,
    PastFailure,
    parted,
    replaced,
)
from monarch_nb.core.errors.records import ErrorRecord

RAISED = ErrorRecord("ValueError", "bad")
DIED = ErrorRecord("RankExited", "the process exited with code 3", died=True)


def failure(record: ErrorRecord, *ranks: int, count: int = 0) -> Failure:
    return Failure(1, ranks, record, "cell In[2]", 10.0, count or len(ranks))


@pytest.mark.parametrize(
    "record, healed, over, left",
    [
        (DIED, [0, 1, 2], (0, 1, 2), None),
        (DIED, [1], (1,), (0, 2)),
        (DIED, [5], None, (0, 1, 2)),
        (RAISED, [0, 1, 2, 3], (0, 1, 2), None),
        (RAISED, [1], None, (0, 1, 2)),
    ],
)
def test_of_a_death_each_rank_is_over_by_itself(record, healed, over, left):
    parts = parted(failure(record, 0, 1, 2), healed)
    assert tuple(part and part.ranks for part in parts) == (over, left)
    assert sum(part.count for part in parts if part) == 3


def test_what_became_of_it_is_said_with_the_time():
    assert replaced(died=True, after_s=0.42) == "healed 0.4 s later: a new process"
    assert replaced(died=False, after_s=300) == "started again 5 min later: a new process"


def test_the_last_hundred_are_kept_newest_first_until_they_are_dismissed():
    history = FailureHistory()
    for number in range(MAX_PAST + 20):
        mesh = "ab"[number % 2]
        history.add(PastFailure(mesh, Failure(number, (0,), DIED, "", 0.0, 1), ""))
    ids = [each.failure.id for each in history.of("a")]
    assert ids == list(range(118, 18, -2))
    assert history.of("a") is history.of("a")  # it is told where it changes
    assert history.dismiss("b", 118) == 0
    assert history.dismiss("a", 118) == 1
    assert [each.failure.id for each in history.of("a")] == ids[1:]
    assert history.dismiss("a", None) == 49
    assert history.of("a") == ()
    assert len(history.of("b")) == 50
