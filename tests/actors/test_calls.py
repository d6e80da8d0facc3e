"""Part A, calling endpoints: every adverb, and what is checked before anything is sent."""

import collections
import operator
import threading

import numpy as np
import pytest
import torch

from monarch_nb import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    ValueMesh,
    endpoint,
    returns_future,
    send,
    this_proc,
)
from tests.actors.cast import AsyncCounter, Counter

pytestmark = pytest.mark.usefixtures("mesh_runtime")


@pytest.fixture(scope="module")
def counters(procs):
    return procs.spawn("counters", Counter, 10)


@pytest.fixture(scope="module")
def grid(procs):
    """The same ranks as two axes."""
    return procs.split(gpus=("rows", "columns"), rows=2).spawn("grid", Counter)


# --------------------------------------------------------------------------------------------- call


def test_call_asks_every_member_and_answers_in_the_mesh_s_shape(counters, grid):
    found = counters.where.call().get()
    assert isinstance(found, ValueMesh)
    assert [value for _, value in found] == [({"gpus": i}, {"gpus": 4}) for i in range(4)]
    assert grid.where.call().get().sizes == {"rows": 2, "columns": 2}
    assert grid.where.call().get().item(rows=1, columns=0)[0] == {"rows": 1, "columns": 0}


def test_call_on_a_slice_answers_in_the_slice_s_shape(counters):
    found = counters.slice(gpus=slice(1, 4, 2)).where.call().get()
    assert found.sizes == {"gpus": 2}
    assert found.values() == [({"gpus": 0}, {"gpus": 2}), ({"gpus": 1}, {"gpus": 2})]
    assert counters.slice(gpus=2).where.call().get().item() == ({}, {})


def test_the_first_error_fails_the_whole_call(counters):
    before = counters.get.call().get().values()
    with pytest.raises(ActorError, match=r"counters\.fail_on failed on rank 2 of 4") as caught:
        counters.fail_on.call(2).get()
    assert caught.value.rank == 2
    assert isinstance(caught.value.exception, ValueError)
    assert counters.get.call().get().values() == before


def test_keywords_and_defaults(counters):
    one = counters.slice(gpus=0)
    assert one.echo.call_one(value=3).get() == 3
    before = one.get.call_one().get()
    assert one.add.call_one(amount=5).get() == before + 5
    assert one.add.call_one(amount=-5).get() == before


# ------------------------------------------------------------------------------ call_one and choose


def test_call_one_asks_exactly_one(counters):
    assert counters.slice(gpus=3).echo.call_one("x").get() == "x"
    assert counters.slice(gpus=slice(3, 4)).echo.call_one("x").get() == "x"
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 4"):
        counters.echo.call_one("x")


def test_choose_asks_one_and_each_sometimes(counters):
    counts = collections.Counter(counters.pid.choose().get() for _ in range(200))
    assert set(counts) == set(counters.pid.call().get().values())
    assert min(counts.values()) > 20  # of 50 expected: five standard deviations


def test_what_choose_called_sees_its_place_in_the_mesh(counters):
    places = [counters.where.choose().get() for _ in range(20)]
    assert all(sizes == {"gpus": 4} and 0 <= point["gpus"] < 4 for point, sizes in places)


def test_a_chosen_one_that_fails(counters):
    with pytest.raises(ActorError, match="rank . of 4"):
        counters.fail.choose().get()


# ------------------------------------------------------------------------------------------- stream


def test_stream_gives_as_many_futures_as_members(counters):
    answers = list(counters.pid.stream())
    assert {each.get() for each in answers} == set(counters.pid.call().get().values())
    assert len(answers) == 4


def test_stream_sends_at_once(counters):
    one = counters.slice(gpus=0)
    before = one.get.call_one().get()
    answers = one.add.stream(1)
    assert one.get.call_one().get() == before + 1  # nobody has iterated yet
    assert [each.get() for each in answers] == [before + 1]
    one.add.call_one(-1).get()


def test_stream_yields_in_the_order_of_arrival(procs):
    gates = procs.spawn("gates", AsyncCounter)
    answers = list(gates.wait_for.stream("open"))
    for number, index in enumerate((2, 0, 3, 1)):
        gates.slice(gpus=index).open_gate.call_one("open").get()
        assert answers[number].get(timeout=5) == "open"
        assert [each.done() for each in answers].count(True) == number + 1


def test_each_of_a_stream_fails_alone(counters):
    outcomes = [each.exception() for each in counters.fail_on.stream(1)]
    assert sorted(type(each) is ActorError for each in outcomes) == [False, False, False, True]
    [error] = [each for each in outcomes if each is not None]
    assert error.rank == 1


def test_a_stream_of_explicit_ports_is_the_first_replies(counters):
    pair = counters.slice(gpus=slice(0, 2))
    assert len([each.get() for each in pair.replies.stream(2)]) == 2
    assert [each.get() for each in counters.slice(gpus=0).replies.stream(3)] == [0]


# ---------------------------------------------------------------------------------------- broadcast


def test_broadcast_returns_nothing_and_reaches_everyone(counters):
    before = counters.get.call().get().values()
    assert counters.add.broadcast(7) is None
    assert counters.get.call().get().values() == [value + 7 for value in before]
    counters.add.broadcast(amount=-7)
    assert counters.get.call().get().values() == before


def test_broadcast_to_an_explicit_port_drops_the_replies(counters):
    counters.replies.broadcast(3)
    assert len(counters.get.call().get()) == 4


# ----------------------------------------------------------------------------------- explicit ports


def test_an_explicit_port_answers_instead_of_the_return_value(counters):
    one = counters.slice(gpus=1)
    assert one.replies.call_one(1).get() == 0
    assert one.replies.call_one(5).get() == 0  # the first; the others are for nobody
    assert counters.replies.call(1).get().values() == [0] * 4


def test_the_port_s_exception_is_raised_as_it_is(counters):
    with pytest.raises(ValueError, match="^no$") as caught:
        counters.slice(gpus=1).refuses.call_one("no").get()
    assert not isinstance(caught.value, ActorError)
    with pytest.raises(ValueError, match="^no$"):
        counters.refuses.call("no").get()


def test_explicit_ports_of_concurrent_endpoints(procs):
    one = procs.slice(gpus=0).spawn("async", AsyncCounter)
    assert one.replies.call_one(2).get() == 0


# ------------------------------------------------------------------------ checked before it is sent


@pytest.mark.parametrize("adverb", ["call", "call_one", "choose", "stream", "broadcast"])
def test_arguments_are_bound_on_the_client(counters, adverb):
    one = counters.slice(gpus=0)
    with pytest.raises(TypeError, match="too many positional arguments"):
        getattr(one.add, adverb)(1, 2)
    with pytest.raises(TypeError, match="missing a required argument: 'value'"):
        getattr(one.echo, adverb)()
    with pytest.raises(TypeError, match=r"^Counter\.add\(.*\): got an unexpected .* 'zz'"):
        getattr(one.add, adverb)(zz=1)
    with pytest.raises(TypeError, match="multiple values for argument 'value'"):
        getattr(one.echo, adverb)(1, value=2)


def test_the_port_of_an_explicit_endpoint_is_not_the_caller_s(counters):
    with pytest.raises(TypeError, match="missing a required argument: 'count'"):
        counters.replies.call()


class Unsendable:
    def __getstate__(self):
        raise KeyError("my own error")


class Unreceivable:
    def __setstate__(self, _):
        raise KeyError("cannot come in")

    def __getstate__(self):
        return {"some": "state"}


@pytest.mark.parametrize("adverb", ["call", "call_one", "choose", "stream", "broadcast"])
def test_an_argument_that_does_not_pickle_raises_here(counters, adverb):
    one = counters.slice(gpus=0)
    with pytest.raises(TypeError, match=r"args\[0\] cannot be pickled"):
        getattr(one.echo, adverb)(threading.Lock())
    with pytest.raises(KeyError, match="my own error"):
        getattr(one.echo, adverb)(Unsendable())
    assert one.echo.call_one(1).get() == 1


def test_an_argument_that_does_not_unpickle_comes_back_and_the_actor_lives(counters):
    one = counters.slice(gpus=0)
    with pytest.raises(ActorError, match="cannot come in"):
        one.echo.call_one(Unreceivable()).get()
    with pytest.raises(ActorError, match="cannot come in"):
        next(one.echo.stream(Unreceivable())).get()
    assert one.echo.call_one(1).get() == 1


def make_lock():
    return threading.Lock()


def test_a_result_that_does_not_pickle_comes_back_and_the_actor_lives(counters):
    one = counters.slice(gpus=0)
    with pytest.raises(ActorError, match="cannot be pickled"):
        one.call_back.call_one(make_lock).get()
    assert one.echo.call_one(1).get() == 1


def test_functions_and_classes_of_main_go_by_value(counters):
    offset = 5
    namespace = {"__name__": "__main__"}
    exec("class Local:\n    def __init__(self, n): self.n = n\n", namespace)
    one = counters.slice(gpus=0)
    assert one.call_back.call_one(lambda n: n + offset, 3).get() == 8
    assert type(one.echo.call_one(namespace["Local"](4)).get()).__name__ == "Local"


# --------------------------------------------------------------------------------------- rref, send


def test_rref_needs_a_mesh_of_tensors(counters):
    with pytest.raises(ValueError, match="no device mesh is active"):
        counters.add.rref(1)


def test_send_to_a_port_of_this_process(counters):
    port, receiver = Channel.open()
    send(counters.echo, ("hello",), {}, port)
    assert [receiver.recv().get() for _ in range(4)] == ["hello"] * 4
    send(counters.echo, (), {"value": "one"}, port, "choose")
    assert receiver.recv().get() == "one"


def test_send_without_a_port_is_a_broadcast(counters):
    before = counters.get.call().get().values()
    send(counters.add, (1,), {})
    assert counters.get.call().get().values() == [value + 1 for value in before]


def test_send_to_a_ranked_port(counters):
    port, receiver = Channel.open_ranked()
    send(counters.fail_on, (9,), {}, port)
    assert sorted(receiver.recv().get() for _ in range(4)) == [(i, i) for i in range(4)]


def test_an_endpoint_that_raises_into_a_port(counters):
    port, receiver = Channel.open()
    send(counters.slice(gpus=0).fail, ("oh",), {}, port)
    with pytest.raises(ActorError, match="oh"):
        receiver.recv().get()


def test_send_checks_what_it_is_given(counters):
    with pytest.raises(ValueError, match='selection is "all" or "choose"'):
        send(counters.echo, (1,), {}, None, "some")
    with pytest.raises(TypeError, match="missing a required argument"):
        send(counters.echo, (), {})


def send_on(counter, port, size):
    send(counter.echo, (b"x" * size,), {}, port)


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_send_with_a_port_of_another_process(counters, size):
    port, receiver = Channel.open()
    # rank 0 calls rank 1, whose answer comes here
    counters.slice(gpus=0).call_back.call_one(send_on, counters.slice(gpus=1), port, size).get()
    assert receiver.recv().get(timeout=5) == b"x" * size


# -------------------------------------------------------------------------------------- accumulator


def test_accumulate_folds_the_answers(counters):
    total = Accumulator(counters.fail_on, 0, operator.add).accumulate(9)
    assert total.get() == 0 + 1 + 2 + 3


def test_accumulate_sends_at_the_call_and_folds_when_observed(counters):
    one = counters.slice(gpus=0)
    folded = []

    def combine(total, value):
        folded.append(value)
        return total + value

    before = one.get.call_one().get()
    total = Accumulator(one.add, 100, combine).accumulate(1)
    assert one.get.call_one().get() == before + 1
    assert folded == []
    assert total.get() == 100 + before + 1
    assert total.get() == 100 + before + 1
    assert len(folded) == 1


def test_an_element_that_fails_fails_the_fold(counters):
    with pytest.raises(ActorError, match="bad on 3"):
        Accumulator(counters.fail_on, 0, operator.add).accumulate(3).get()


def test_without_answers_there_is_the_identity():
    class Nobody:
        def stream(self):
            return iter(())

    assert Accumulator(Nobody(), "start", operator.add).accumulate().get() == "start"


def test_accumulate_may_be_awaited(counters):
    @returns_future
    async def twice():
        total = Accumulator(counters.fail_on, 0, operator.add)
        return await total.accumulate(9) + await total.accumulate(9)

    assert twice().get() == 12


# ----------------------------------------------------------------------------------------- values


class Keeper(Actor):
    """Keeps what it is given."""

    @endpoint
    def keep(self, *values):
        self.values = values

    @endpoint
    def show(self):
        return [value.tolist() for value in self.values]


@pytest.mark.parametrize("size", [3, 1 << 18])
def test_an_actor_of_the_same_process_has_copies_too(size):
    array, tensor = np.zeros(size), torch.zeros(size)
    keeper = this_proc().spawn("keeper", Keeper)
    keeper.keep.call_one(array, tensor).get()
    array[0] = tensor[0] = 7
    assert [values[0] for values in keeper.show.call_one().get()] == [0, 0]
    keeper.stop().get()
