"""Where ranks meet: what the owner of a mesh answers, to messages of any kind."""

import pytest

from monarch_nb import this_host
from monarch_nb.control.client import client
from monarch_nb.core.wire.frames import CONTROL, CONTROL_PORT, HEADER, Message
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.stores import (
    LARGEST_VALUE,
    AddTo,
    AppendTo,
    AwaitKeys,
    Blob,
    CheckKeys,
    CompareAndSet,
    CountKeys,
    DeleteKey,
    Found,
    LeavePlace,
    LeaveWait,
    Number,
    SetKeys,
)
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.services.stores import Stores
from tests import inside


class Owner:
    """This process, asked by itself as a rank would."""

    def __init__(self, procs):
        self.procs = procs
        self.state = inside.state(procs)
        self.place = self.state.store()

    def ask(self, request, within_s=5.0):
        """The answer; None where there is none yet."""
        proc = client().proc
        question = Question(proc, {proc.id: request})
        return question.wait(within_s).get(proc.id)

    def later(self, request):
        proc = client().proc
        return Question(proc, {proc.id: request})

    def set(self, **values):
        blobs = [Blob(value) for value in values.values()]
        assert self.ask(SetKeys(self.place, list(values), blobs)) == Done()

    def places(self):
        return len(client().parts[Stores])


@pytest.fixture
def owner(mesh_runtime):
    procs = this_host().spawn_procs()
    procs.initialized.get(40)
    yield Owner(procs)
    procs.stop().get(20)


def test_every_call_of_a_store(owner):
    place = owner.place
    owner.set(a=b"1", b=b"\x00\xff")
    assert owner.ask(CheckKeys(place, ["a", "c"])) == Found(["c"], [])
    assert owner.ask(AwaitKeys(place, 1, ["b", "a"], [])) == Found([], [b"\x00\xff", b"1"])
    assert owner.ask(AddTo(place, "a", 4)) == Number(5)
    assert owner.ask(AppendTo(place, "b", Blob(b"!"))) == Done()
    assert owner.ask(CompareAndSet(place, "b", Blob(b"\x00\xff!"), Blob(b"x"))).values == [b"x"]
    assert owner.ask(CountKeys(place)) == Number(2)
    assert owner.ask(DeleteKey(place, "b")) == Number(1)
    assert owner.ask(DeleteKey(place, "b")) == Number(0)


def test_who_waits_is_answered_when_the_last_key_comes(owner):
    waiting = owner.later(AwaitKeys(owner.place, 1, ["a", "b"], []))
    owner.set(a=b"1")
    assert not waiting.answers
    owner.set(b=b"2")
    assert list(waiting.wait(0).values()) == [Found([], [b"1", b"2"])]


def test_a_wait_that_is_given_up_is_answered_with_a_refusal(owner):
    waiting = owner.later(AwaitKeys(owner.place, 7, ["a"], []))
    client().proc.control(client().proc.id, LeaveWait(owner.place, 7))
    [answer] = waiting.wait(0).values()
    assert isinstance(answer, Refused)
    owner.set(a=b"")


def test_who_dies_waits_no_longer(owner):
    proc = client().proc
    stranger = 77 << 48 | 5
    body = codec.encode(AwaitKeys(owner.place, 1, ["a"], []))
    header = HEADER.pack(CONTROL, 0, 0, 0, 0, CONTROL_PORT, stranger, 999)
    proc.deliver(Message(HEADER.unpack(header), body))
    client().supervision.exited(Exit(stranger, reason="it has ended"))
    assert not inside.place(owner.procs).leave(lambda _: True), "nobody waits there"


@pytest.mark.parametrize(
    "request_of, why",
    [
        (lambda place: CountKeys("nowhere"), "'nowhere' is no place"),
        (lambda place: CountKeys("5-0"), "there is no such mesh"),
        (lambda place: CountKeys(place + "1"), "healed or regrouped"),
        (lambda place: SetKeys(place, ["a"], []), "1 keys and 0 values"),
        (lambda place: SetKeys(place, ["a"], [Blob(LARGEST_VALUE + 1)]), "by a collective"),
        (lambda place: AppendTo(place, "a", Blob(LARGEST_VALUE + 1)), "by a collective"),
        (lambda place: AddTo(place, "text", 1), "no number"),
        (lambda place: AwaitKeys("-", 1, ["a"], []), "'-' is no place"),
    ],
)
def test_what_makes_no_sense_is_refused_politely(owner, request_of, why):
    owner.set(text=b"x")
    answer = owner.ask(request_of(owner.place))
    assert isinstance(answer, Refused)
    assert why in answer.error
    assert owner.ask(CountKeys(owner.place)) == Number(1), "the inbox thread lives"


def test_the_largest_value_passes(owner):
    largest = Blob(bytes(range(256)) * (LARGEST_VALUE // 256))
    owner.set(a=largest)
    assert owner.ask(AwaitKeys(owner.place, 1, ["a"], [])).values == [largest]


def test_a_place_is_gone_when_the_last_of_a_script_has_left(owner):
    proc, place = client().proc, f"{owner.place}-run"
    before = owner.places()
    for rank in (1, 0):
        proc.control(proc.id, LeavePlace(place, rank, 2))
        assert owner.places() - before == rank
    proc.control(proc.id, LeavePlace("nowhere", 0, 1))
    assert owner.places() == before


def test_old_generations_are_forgotten_and_who_waits_there_is_told(owner):
    waiting = owner.later(AwaitKeys(owner.place, 1, ["a"], []))
    for generation in (1, 2):
        assert not waiting.answers
        owner.state.next_generation()
        assert owner.ask(CountKeys(owner.state.store())) == Number(0)
        assert owner.places() == min(generation + 1, 2)
    [answer] = waiting.answers.values()
    assert "healed or regrouped" in answer.error


def test_the_keys_go_with_the_mesh_and_who_waits_is_told(owner):
    waiting = owner.later(AwaitKeys(owner.place, 1, ["a"], []))
    owner.procs.stop().get(20)
    [answer] = waiting.wait(5).values()
    assert answer == Refused("the mesh was stopped")
    assert owner.places() == 0
    assert "there is no such mesh" in owner.ask(CountKeys(owner.place)).error
