"""Ids as text: they read well, come back from their text, and are never equal by accident."""

import json
import pickle

import pytest

from monarch_nb import Actor, ProcId, Uid, context, endpoint, this_proc


class Mirror(Actor):
    @endpoint
    def me(self):
        return context().actor_instance.actor_id


def test_an_instance_is_one_of_many():
    one, other = Uid.instance("service"), Uid.instance("service")
    assert one != other
    assert one.startswith("service-")
    assert (one.label, one.is_singleton) == ("service", False)
    assert Uid.instance().label is None


@pytest.mark.parametrize("label", [None, "service", "a-b", "00000000000000ff", "mesh 1/x"])
@pytest.mark.parametrize("value", [0, 255, 2**64 - 1])
def test_a_number_and_a_label_come_back_from_the_text(label, value):
    uid = Uid.instance_from_value(value, label)
    found = Uid.from_string(str(uid))
    assert (found, found.value, found.label) == (uid, value, label)


def test_a_singleton_is_its_name():
    uid = Uid.singleton("controller")
    assert uid == "controller" == str(Uid.from_string("controller"))
    assert (uid.label, uid.value, uid.is_singleton) == ("controller", None, True)
    for name in ("", "00000000000000ff", "service-00000000000000ff"):
        with pytest.raises(ValueError, match="cannot name a singleton"):
            Uid.singleton(name)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_numbers_are_of_64_bits(value):
    with pytest.raises(ValueError, match="64 bits"):
        Uid.instance_from_value(value)
    with pytest.raises(ValueError, match="not empty"):
        Uid.instance_from_value(1, "")
    with pytest.raises(ValueError, match="empty text"):
        Uid.from_string("")


def test_it_travels_as_text():
    uid = Uid.instance("service")
    assert pickle.loads(pickle.dumps(uid)) == uid == json.loads(json.dumps(uid))
    assert type(pickle.loads(pickle.dumps(uid))) is Uid
    assert {uid: 1}[Uid.from_string(uid)] == 1


def test_a_process_and_an_actor_have_one():
    named = ProcId(Uid.instance("service"))
    assert ProcId.from_string(str(named)).uid == named
    assert (named.label, named.uid.is_instance) == ("service", True)
    assert not Uid.singleton("service").is_instance
    mine, again = (this_proc().spawn("mirror", Mirror).me.call_one().get(5) for _ in range(2))
    assert mine.proc_id.uid.value == context().actor_instance.process
    assert mine.uid.label == "mirror"
    assert mine.uid != again.uid
