"""What the controller decides of a loop whose ranks die, park and come back."""

import random

import pytest

from monarch_nb.core.elastic.record import MAX_RECOVERIES, LoopRecord, Phase
from monarch_nb.core.wire.messages.elastic import (
    GO,
    RAISE,
    RECOVER,
    SKIP,
    TAKE,
    GroupMade,
    Kept,
    Member,
    Newcomer,
    Orders,
    ParkRank,
    Verdict,
)

GROUP = GroupMade("0", [0, 1, 2], "gloo", "cpu:gloo", {"cpu": "gloo"})
HOSTS = dict.fromkeys(range(3), 1)
GOOD, BAD = Verdict(good=True), Verdict(good=False)


def parked(
    step: int,
    *,
    can_retry: bool = True,
    snapshots: tuple[int, ...] = (),
    is_prepared: bool = False,
    timed_out: bool = False,
    kept: tuple[Kept, ...] = (),
    regroups: bool = False,
) -> ParkRank:
    return ParkRank(
        1,
        1,
        step,
        "",
        can_retry,
        list(snapshots),
        [GROUP],
        is_prepared,
        timed_out,
        list(kept),
        regroups,
    )


def begun(step: int = 0) -> LoopRecord:
    """Three ranks, processes 10 to 12, that have all begun."""
    record = LoopRecord({0: 10, 1: 11, 2: 12}, dict(HOSTS))
    told = []
    for rank in range(3):
        told += record.begin(rank, step, {"own": f"held{rank}"}, ["0"])
    orders = Orders(GO, step=step, members=[Member(0, 10), Member(1, 11), Member(2, 12)])
    assert dict(told) == dict.fromkeys(range(3), orders)
    return record


def back(record: LoopRecord, rank: int, process: int = 13) -> dict[int, Orders]:
    """A new process has come to the loop: what all are told."""
    record.replace(rank, process, 1)
    return dict(record.begin(rank, 0, {}, ["0"]))


def test_all_begin_together():
    record = LoopRecord({0: 10, 1: 11}, dict(HOSTS))
    assert record.begin(0, 3, {}, []) == []
    orders = Orders(GO, step=3, members=[Member(0, 10), Member(1, 11)])
    assert dict(record.begin(1, 3, {}, [])) == {0: orders, 1: orders}


def test_ranks_that_begin_at_different_steps_are_told():
    record = LoopRecord({0: 10, 1: 11}, dict(HOSTS))
    record.begin(0, 3, {}, [])
    told = dict(record.begin(1, 4, {}, []))
    assert {each.what for each in told.values()} == {RAISE}
    assert told[0].why == "the ranks begin at different steps: 3, 4"


def test_after_a_death_all_park_and_go_on_together():
    record = begun()
    assert record.lose(2) == []
    assert record.awaited == {0, 1}
    assert record.park(0, parked(4)) == record.park(1, parked(4)) == []
    told = back(record, 2)
    members = [Member(0, 10), Member(1, 11), Member(2, 13)]
    orders = Orders(RECOVER, 1, 4, False, members, [GROUP], [Newcomer(2, 13, 0, 10)])
    assert told == {0: orders, 1: orders, 2: orders._replace(held={"own": "held2"})}
    assert record.ready(0, 1) == record.ready(2, 1) == []
    assert dict(record.ready(1, 1)) == dict.fromkeys(range(3), GOOD)
    assert record.phase is Phase.RUNS


def test_who_was_prepared_takes_the_step_that_another_has_taken():
    record = begun()
    record.park(0, parked(4, is_prepared=True))
    record.lose(2)
    assert dict(record.park(1, parked(5))) == {0: Orders(TAKE)}
    record.park(0, parked(5))
    assert {each.step for each in back(record, 2).values()} == {5}


def test_the_dead_one_may_have_taken_the_step_for_which_all_were_prepared():
    record = begun()
    record.hold(2, 5, {"cpu": "after 4"})
    record.lose(2)
    record.park(0, parked(4, is_prepared=True))
    told = dict(record.park(1, parked(4, is_prepared=True)))
    assert told == {0: Orders(TAKE), 1: Orders(TAKE)}
    # without the dead one nobody takes another step
    record.hold(2, 6, {})
    record.park(0, parked(5, is_prepared=True))
    assert record.park(1, parked(5, is_prepared=True)) == []
    assert {each.step for each in back(record, 2).values()} == {5}


def test_a_step_for_which_the_dead_one_was_not_prepared_was_taken_by_nobody():
    record = begun()
    record.lose(2)
    record.park(0, parked(4, is_prepared=True))
    assert record.park(1, parked(4, is_prepared=True)) == []
    assert {each.step for each in back(record, 2).values()} == {4}


def test_a_step_for_which_one_was_not_prepared_was_taken_by_nobody():
    record = begun()
    record.lose(2)
    record.park(0, parked(4, is_prepared=True))
    assert record.park(1, parked(4)) == []
    assert {each.step for each in back(record, 2).values()} == {4}


def test_ranks_in_different_steps_cannot_go_on():
    record = begun()
    record.lose(2)
    record.park(0, parked(4))
    record.park(1, parked(5))
    told = back(record, 2)
    assert told[0] == Orders(RAISE, why="the ranks are in different steps: 4, 5")


def test_what_a_rank_held_is_handed_to_the_one_in_its_place():
    record = begun()
    record.hold(2, 1, {"cpu": "after 0", "place": "1"})
    record.hold(2, 2, {"place": "2"})
    record.hold(2, 4, {"place": "4"})
    record.lose(2)
    record.park(0, parked(3))
    record.park(1, parked(3))
    assert back(record, 2)[2].held == {"own": "held2", "cpu": "after 0", "place": "2"}


def test_what_a_rank_held_at_the_begin_is_kept():
    record = begun()
    for step in range(1, 50):
        record.hold(2, step, {"own": f"{step}"})
    record.lose(2)
    record.park(0, parked(49, can_retry=False, snapshots=(0,)))
    record.park(1, parked(49, snapshots=(0,)))
    assert back(record, 2)[2].held == {"own": "held2"}


def test_where_one_cannot_retry_all_go_back():
    record = begun()
    record.lose(2)
    record.park(0, parked(1, can_retry=False, snapshots=(0,)))
    record.park(1, parked(1, snapshots=(0, 1)))
    told = back(record, 2)
    assert {(each.step, each.snapshot) for each in told.values()} == {(0, True)}
    assert told[2].held == {"own": "held2"}


def test_without_a_common_snapshot_it_ends():
    record = begun()
    record.lose(2)
    record.park(0, parked(1, can_retry=False))
    record.park(1, parked(1))
    told = back(record, 2)
    assert {each.what for each in told.values()} == {RAISE}
    assert "no snapshot" in told[0].why


def test_a_death_while_they_come_back_begins_that_again():
    record = begun()
    record.lose(2)
    record.park(0, parked(0))
    record.park(1, parked(0))
    back(record, 2)
    record.ready(0, 1)
    assert dict(record.lose(1)) == {0: BAD}
    assert dict(record.ready(2, 1)) == {2: BAD}, "of a generation that is over"
    record.park(0, parked(0))
    record.park(2, parked(0))
    told = back(record, 1, 14)
    assert {each.rank for each in told[0].newcomers} == {1, 2}
    assert {each.source for each in told[0].newcomers} == {0}
    assert told[0].generation == 2


def test_who_cannot_do_what_it_was_ordered_is_ordered_again():
    record = begun()
    record.lose(2)
    record.park(0, parked(0))
    record.park(1, parked(0))
    back(record, 2)
    record.ready(0, 1)
    assert dict(record.park(1, parked(0))) == {0: BAD}
    record.park(0, parked(0))
    told = dict(record.park(2, parked(0)))
    assert told[2].held == {"own": "held2"}, "it is still new"
    assert told[0].generation == 2


def test_an_error_of_ones_own_is_given_back():
    record = begun()
    record.park(1, parked(0))
    assert dict(record.give_up(1)) == {1: Orders(RAISE)}
    assert record.give_up(1) == []


def test_no_error_is_given_back_while_another_has_waited_for_one_that_hangs():
    record = begun()
    record.park(1, parked(0))
    record.park(0, parked(0, timed_out=True))
    assert record.give_up(1) == []


def test_who_has_not_stopped_while_others_waited_hangs():
    record = begun()
    assert record.hung() == []
    record.park(0, parked(0, timed_out=True))
    record.park(1, parked(0, is_prepared=True))
    assert record.hung() == [2]
    record.lose(2)
    assert record.hung() == []


def test_no_error_is_given_back_once_one_is_lost():
    record = begun()
    record.park(1, parked(0))
    record.lose(2)
    assert record.give_up(1) == []


def test_nobody_is_left():
    record = LoopRecord({0: 10}, dict(HOSTS))
    record.begin(0, 0, {}, ["0"])
    record.lose(0)
    told = back(record, 0)
    assert told == {0: Orders(RAISE, why="no rank is left that has the state of the loop")}


def test_a_group_that_the_new_process_has_not_made():
    record = begun()
    record.lose(2)
    record.park(0, parked(0))
    record.park(1, parked(0))
    record.replace(2, 13, 1)
    told = dict(record.begin(2, 0, {}, []))
    assert "rank 2 has not made process group '0'" in told[0].why


def test_what_is_mended_again_and_again_ends():
    record = begun()
    for number in range(MAX_RECOVERIES + 1):
        record.lose(2)
        record.park(0, parked(3))
        record.park(1, parked(3))
        told = back(record, 2, 20 + number)
        for rank in range(3):
            record.ready(rank, record.generation)
    assert told[0].why == f"it was mended {MAX_RECOVERIES} times, and step 3 has not been taken"


def test_losses_with_steps_in_between_may_be_many():
    record = begun()
    for number in range(3 * MAX_RECOVERIES):
        record.lose(2)
        record.park(0, parked(number))
        record.park(1, parked(number))
        assert back(record, 2, 20 + number)[0].step == number
        for rank in range(3):
            record.ready(rank, record.generation)


def test_who_comes_to_a_loop_that_is_over_skips_it():
    record = begun()
    for rank in range(3):
        record.leave(rank, 7, finished=True)
    assert not record.can_be_mended
    assert record.begin(1, 0, {}, [])[0].answer == Orders(SKIP, step=7)


def test_once_one_has_left_the_errors_of_others_are_their_own():
    record = begun()
    assert record.leave(0, 3, finished=False) == []
    [told] = record.park(1, parked(3))
    assert told.answer == Orders(RAISE, why="rank 0 left the loop before")
    [told] = record.park(2, parked(3, is_prepared=True)._replace(why="RuntimeError: x"))
    assert told.answer == Orders(RAISE), "its error is its own"


def test_who_is_prepared_to_leave_leaves_after_another_has():
    record = begun()
    record.leave(0, 7, finished=True)
    [told] = record.park(1, parked(7, is_prepared=True))
    assert told.answer == Orders(TAKE)


def test_nobody_waits_for_a_lost_one_once_one_has_left():
    record = begun()
    record.lose(2)
    record.park(1, parked(3))
    assert dict(record.leave(0, 3, finished=False)) == {
        1: Orders(RAISE, why="rank 0 left the loop before")
    }
    assert record.phase is Phase.OVER


def test_once_one_has_left_nobody_is_replaced():
    record = begun()
    assert record.can_be_mended
    record.leave(0, 3, finished=True)
    assert not record.can_be_mended


def test_where_no_process_can_be_had_all_raise_after_the_same_steps():
    record = begun()
    record.park(0, parked(4, is_prepared=True))
    record.lose(2)
    assert record.wants_processes
    assert record.fail("no host is left") == []
    assert not record.wants_processes
    assert dict(record.park(1, parked(5))) == {0: Orders(TAKE)}
    told = Orders(RAISE, why="no host is left")
    assert dict(record.park(0, parked(5))) == {0: told, 1: told}
    assert record.phase is Phase.OVER


def begun_for_fewer(parts: tuple[int, ...] = (0, 0, 0)) -> LoopRecord:
    record = LoopRecord({0: 10, 1: 11, 2: 12}, dict(HOSTS))
    for rank in range(3):
        record.begin(rank, 0, {"own": "held"}, ["0"], part=parts[rank], may_be_fewer=True)
    return record


def test_ranks_that_can_go_on_without_those_that_nobody_replaces():
    record = begun_for_fewer()
    record.lose(2)
    assert record.go_on_without([2], "no host is left") == []
    assert not record.lost
    record.park(0, parked(4, is_prepared=True))
    assert dict(record.park(1, parked(5))) == {0: Orders(TAKE)}
    told = dict(record.park(0, parked(5)))
    assert told[0] == told[1]
    assert told[0].members == [Member(0, 10), Member(1, 11)]
    assert (told[0].what, told[0].step, told[0].fewer, told[0].shrinks) == (RECOVER, 5, True, True)
    assert told[0].groups == []  # rank 2 was in all
    record.ready(0, told[0].generation)
    assert dict(record.ready(1, told[0].generation)) == {0: GOOD, 1: GOOD}
    # of those that are left one dies, and comes back
    record.lose(1)
    record.park(0, parked(6))
    record.replace(1, 14, 1)
    told = dict(record.begin(1, 0, {}, [], may_be_fewer=True))
    assert told[1].newcomers == [Newcomer(1, 14, 0, 10)]
    assert (told[1].fewer, told[1].shrinks) == (True, False)


@pytest.mark.parametrize("parts", [(0, 1, 2), (0, 1, 0)])
def test_with_parts_they_cannot(parts):
    record = begun_for_fewer(parts)
    record.lose(2)
    record.park(0, parked(4))
    record.park(1, parked(4))
    told = Orders(RAISE, why="no host is left")
    assert dict(record.go_on_without([2], "no host is left")) == {0: told, 1: told}


def test_nor_unless_all_said_that_they_can():
    record = begun()
    record.lose(2)
    record.park(0, parked(4))
    record.park(1, parked(4))
    told = Orders(RAISE, why="no host is left")
    assert dict(record.go_on_without([2], "no host is left")) == {0: told, 1: told}


def begun_in_parts() -> LoopRecord:
    """Three ranks of which each has what no other has, kept by the next one."""
    record = LoopRecord({0: 10, 1: 11, 2: 12}, dict(HOSTS))
    told = []
    for rank in range(3):
        told += record.begin(rank, 0, {"own": f"held{rank}"}, ["0"], part=rank)
    assert {rank: (each.keeper, each.wards) for rank, each in told} == {
        0: (11, [Member(2, 12)]),
        1: (12, [Member(0, 10)]),
        2: (10, [Member(1, 11)]),
    }
    assert all(each.with_snapshots for _, each in told)
    return record


def test_a_part_that_is_lost_comes_from_who_keeps_its_snapshot_and_all_go_back_to_it():
    record = begun_in_parts()
    record.hold(2, 4, {"own": "held2 at 4"}, is_snapshot=True)
    record.hold(2, 7, {"own": "held2 at 7"})
    record.lose(2)
    record.park(0, parked(6, snapshots=(0, 4), kept=(Kept(2, 0), Kept(2, 4))))
    record.park(1, parked(6, snapshots=(0, 4)))
    told = back(record, 2)
    assert {(each.step, each.snapshot) for each in told.values()} == {(4, True)}
    assert told[0].newcomers == [Newcomer(2, 13, 0, 10, kept=True)]
    assert told[2].held == {"own": "held2 at 4"}
    assert (told[0].wards, told[1].keeper) == ([Member(2, 13)], 13)


def test_a_snapshot_that_was_under_way_is_none():
    record = begun_in_parts()
    record.lose(2)
    record.park(0, parked(6, snapshots=(0, 4), kept=(Kept(2, 0),)))
    record.park(1, parked(6, snapshots=(0, 4)))
    assert {each.step for each in back(record, 2).values()} == {0}


def test_a_part_that_is_lost_with_its_keeper_ends_the_loop_and_says_why():
    record = begun_in_parts()
    record.lose(1)
    record.lose(2)
    record.park(0, parked(6, snapshots=(0, 4), kept=(Kept(2, 0), Kept(2, 4))))
    assert back(record, 1, 14) == {}
    told = back(record, 2)
    assert told[0].why == "nobody has what rank 1 had in memory: who had a copy is lost too"


def test_ranks_that_began_alike_and_are_not_are_parts_after_the_first_step():
    record = begun()
    for rank in range(3):
        record.hold(rank, 2, {}, part=rank)
        told = record.park(rank, parked(1, can_retry=False, snapshots=(0,), regroups=True))
        assert record.give_up(rank) == []
    orders = dict(told)
    assert {(each.what, each.step, each.snapshot) for each in orders.values()} == {
        (RECOVER, 0, True)
    }
    assert [orders[rank].keeper for rank in range(3)] == [11, 12, 10]


def test_until_all_have_told_their_parts_those_of_the_begin_count():
    record = begun()
    record.hold(0, 2, {}, part=5)
    record.lose(2)
    record.park(0, parked(1, can_retry=False, snapshots=(0,)))
    record.park(1, parked(1, can_retry=False, snapshots=(0,)))
    told = back(record, 2)
    assert (told[2].step, told[2].snapshot) == (0, True)
    assert told[0].newcomers == [Newcomer(2, 13, 0, 10)]


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_all_take_the_same_steps(seed):
    """Ranks that do as they are told, on a network that delays and with deaths at any time: each
    step is taken by all that live or by none, and the loop comes to its end."""
    simulation = Simulation(random.Random(seed))
    simulation.run(steps=6, deaths=4)
    assert {rank.step for rank in simulation.ranks.values()} == {6}
    assert {rank.does for rank in simulation.ranks.values()} == {"done"}


class SimulatedRank:
    """A rank of the simulation: what it does next, and how many steps it has taken."""

    def __init__(self, process: int, step: int, does: str) -> None:
        self.process = process
        self.step = step
        self.does = does  # begin, work, agree, park, ready, wait, dead, done
        self.is_prepared = False
        self.generation = 0
        self.has_state = True


class Simulation:
    """Acts one at a time, in any order. `came` are those that have come to the collective by which
    ranks agree on a step, in this generation; once a rank has died since, it may still end well for
    some of them if all had come, and fails for the others."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.ranks = {rank: SimulatedRank(10 + rank, 0, "begin") for rank in range(4)}
        processes = {rank: each.process for rank, each in self.ranks.items()}
        self.record = LoopRecord(processes, dict.fromkeys(processes, 1))
        self.processes = 100
        self.steps = 0
        self.is_broken = False
        self.came: dict[tuple[int, int], set[int]] = {}

    def run(self, steps: int, deaths: int) -> None:
        self.steps = steps
        for _ in range(5_000):
            acting = [r for r in self.ranks if self.can_act(r)]
            if not acting:
                break
            doomed = self.chance.choice(list(self.ranks))
            has_state = {r for r, each in self.ranks.items() if each.has_state}
            can_die = self.record.can_be_mended and bool(has_state - {doomed}) and deaths > 0
            if can_die and self.ranks[doomed].does != "dead" and self.chance.random() < 0.08:
                deaths -= 1
                self.die(doomed)
            else:
                self.act(self.chance.choice(acting))

    def can_act(self, rank: int) -> bool:
        me = self.ranks[rank]
        if me.does == "agree":
            return self.is_broken or len(self.came[me.generation, me.step]) == len(self.ranks)
        return me.does not in ("wait", "done")

    def die(self, rank: int) -> None:
        self.ranks[rank] = SimulatedRank(0, 0, "dead")
        self.ranks[rank].has_state = False
        self.is_broken = True
        self.tell(self.record.lose(rank))

    def act(self, rank: int) -> None:
        me, record = self.ranks[rank], self.record
        if me.does == "work":
            self.work(rank)
            return
        if me.does == "agree":
            self.agree(rank)
            return
        does, me.does = me.does, "wait"
        if does == "dead":
            self.processes += 1
            me.process, me.does = self.processes, "begin"
            record.replace(rank, me.process, 1)
        elif does == "begin":
            self.tell(record.begin(rank, 0, {}, ["0"]))
        elif does == "park":
            self.tell(record.park(rank, parked(me.step, is_prepared=me.is_prepared)))
        elif does == "ready":
            self.tell(record.ready(rank, me.generation))

    def work(self, rank: int) -> None:
        me = self.ranks[rank]
        if self.is_broken and self.chance.random() < 0.5:  # a collective of its own fails
            me.does = "park"
            return
        if not self.is_broken:
            self.record.hold(rank, me.step + 1, {})
            self.came.setdefault((me.generation, me.step), set()).add(rank)
        me.does, me.is_prepared = "agree", True

    def agree(self, rank: int) -> None:
        me = self.ranks[rank]
        all_came = len(self.came.get((me.generation, me.step), ())) == len(self.ranks)
        if all_came and (not self.is_broken or self.chance.random() < 0.5):
            self.take(me)
        else:
            me.does = "park"

    def take(self, me: SimulatedRank) -> None:
        me.is_prepared = False
        if me.step == self.steps:
            me.does = "done"
            rank = next(rank for rank, each in self.ranks.items() if each is me)
            self.tell(self.record.leave(rank, me.step, finished=True))
        else:
            me.step += 1
            me.does = "work"

    def tell(self, told) -> None:
        for rank, answer in told:
            me = self.ranks[rank]
            if me.does == "dead":
                continue
            if isinstance(answer, Verdict):
                if not answer.good:
                    me.does = "park"
                elif self.record.phase is Phase.RUNS:
                    self.is_broken = False
                    me.has_state, me.does = True, "work"
            elif answer.what == TAKE:
                assert me.is_prepared
                self.take(me)
            elif answer.what == GO:
                me.does = "work"
            elif answer.what == SKIP:  # the others have finished without the new process
                assert answer.step == self.steps
                me.step, me.does = answer.step, "done"
            elif answer.what == RAISE:  # and without it
                assert not me.has_state
                assert any(each.does == "done" for each in self.ranks.values())
                me.step, me.does = self.steps, "done"
            else:
                assert answer.what == RECOVER, answer
                if me.has_state:  # who has taken steps takes none back
                    assert answer.step == me.step
                me.step, me.generation = answer.step, answer.generation
                me.does, me.is_prepared = "ready", False
