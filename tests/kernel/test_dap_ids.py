"""Numbers of several ranks' threads, frames and variables as one debugger's."""

from monarch_kernel.debug.rank_session import Ids, thread_number, thread_of


def test_threads_of_ranks_are_distinct_and_none_is_thread_1():
    numbers = {thread_number(rank, thread) for rank in range(3) for thread in (1, 2, 900)}
    assert len(numbers) == 9
    assert 1 not in numbers
    assert thread_of(thread_number(2, 900)) == (2, 900)
    assert thread_of(1) is None
    assert thread_of(None) is None


def test_a_stack_has_our_numbers():
    ids = Ids()
    frame = {"id": 140_000_000, "name": "work", "line": 3, "column": 1, "source": {"path": "x"}}
    told = [ids.outward(rank, {"stackFrames": [frame]}) for rank in (0, 1)]
    first, second = (each["stackFrames"][0]["id"] for each in told)
    assert first != second
    assert ids.of(first) == (0, 140_000_000)
    assert ids.of(second) == (1, 140_000_000)
    assert ids.outward(0, {"stackFrames": [frame]}) == told[0], "the same while it is stopped"


def test_variables_that_have_no_children_stay_so():
    ids = Ids()
    told = ids.outward(1, {"variables": [{"variablesReference": 0}, {"variablesReference": 7}]})
    assert told["variables"][0]["variablesReference"] == 0
    assert ids.of(told["variables"][1]["variablesReference"]) == (1, 7)


def test_a_breakpoint_is_no_frame():
    told = Ids().outward(1, {"breakpoints": [{"id": 0, "line": 3, "verified": True}]})
    assert told["breakpoints"] == [{"id": 0, "line": 3, "verified": True}]


def test_a_rank_that_goes_on_takes_its_numbers_along():
    ids = Ids()
    gone, stays = ids.number(0, 5), ids.number(1, 5)
    ids.forget(0)
    assert ids.of(gone) is None
    assert ids.of(stays) == (1, 5)
    assert ids.number(0, 5) not in {gone, stays}
    assert ids.of("5") is None
