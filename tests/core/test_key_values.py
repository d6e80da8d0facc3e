"""Keys with values and who waits for them, without processes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch_nb.core.key_values import Ended, KeyValues

KEYS = st.sampled_from(["a", "b", "c"])


def store(**values: bytes) -> KeyValues[str]:
    made: KeyValues[str] = KeyValues()
    made.set(list(values), list(values.values()))
    return made


def test_a_wait_ends_when_its_last_key_comes():
    made = store()
    assert made.wait("me", ["a", "b"], []) == []
    assert made.set(["a"], [b"1"]) == []
    assert made.set(["b"], [b"2"]) == [Ended(["me"], ("a", "b"), [])]
    assert made.values(["a", "b"]) == [b"1", b"2"]
    assert made.set(["b"], [b"3"]) == [], "it ends once"


def test_a_wait_for_what_is_there_has_ended():
    assert store(a=b"1").wait("me", ["a"], []) == [Ended(["me"], ("a",), [])]
    assert store().wait("me", [], []) == [Ended(["me"], (), [])]


def test_all_who_wait_for_the_same_end_together():
    made = store()
    for who in ("one", "two"):
        made.wait(who, ["a"], [])
    assert made.set(["a"], [b""]) == [Ended(["one", "two"], ("a",), [])]


def test_a_key_that_goes_before_the_last_comes_is_waited_for_again():
    made = store()
    made.wait("me", ["a", "b"], [])
    made.set(["a"], [b""])
    assert made.delete("a") is True
    assert made.set(["b"], [b""]) == []
    assert made.set(["a"], [b""]) == [Ended(["me"], ("a", "b"), [])]


def test_a_wait_ends_without_its_keys_when_another_says_so():
    made = store(a=b"")
    assert made.wait("me", ["a", "b"], ["left"]) == []
    assert made.set(["left"], [b""]) == [Ended(["me"], ("a", "b"), ["b"])]
    assert made.wait("late", ["b"], ["left"]) == [Ended(["late"], ("b",), ["b"])]


def test_who_leaves_is_told_of_no_end():
    made = store()
    made.wait("me", ["a"], [])
    made.wait("you", ["a"], [])
    assert made.leave(lambda who: who == "me") == ["me"]
    assert made.set(["a"], [b""]) == [Ended(["you"], ("a",), [])]


def test_numbers_are_counted_as_text():
    made = store()
    assert made.add("n", 2)[0] == 2
    assert made.add("n", -5)[0] == -3
    assert made.values(["n"]) == [b"-3"]
    made.wait("me", ["m"], [])
    assert made.add("m", 1) == (1, [Ended(["me"], ("m",), [])])


@pytest.mark.parametrize("value, amount", [(b"x", 1), (b"\xff", 1), (b"1", (1 << 63) - 1)])
def test_what_is_no_number_is_not_counted(value, amount):
    made = store(n=value)
    with pytest.raises(ValueError, match="add: the (value|sum)"):
        made.add("n", amount)
    assert made.values(["n"]) == [value]


@pytest.mark.parametrize(
    "there, expected, answer, after",
    [
        (b"old", b"old", b"new", b"new"),
        (b"old", b"other", b"old", b"old"),
        (None, b"", b"new", b"new"),
        (None, b"other", b"other", None),
    ],
)
def test_a_key_is_set_where_it_has_the_expected_value(there, expected, answer, after):
    made = store() if there is None else store(k=there)
    assert made.compare_set("k", expected, b"new")[0] == answer
    assert (None if made.missing(["k"]) else made.values(["k"])[0]) == after


def test_as_many_values_as_keys():
    made = store()
    with pytest.raises(ValueError, match="argument 2 is"):
        made.set(["a", "b"], [b""])
    assert len(made) == 0


class Waits(RuleBasedStateMachine):
    """Whoever waits ends exactly when all of its keys are there, or one that ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.store: KeyValues[int] = KeyValues()
        self.there: set[str] = set()
        self.waiting: dict[int, tuple[list[str], list[str]]] = {}
        self.last = 0

    def heard(self, ended: list[Ended[int]]) -> None:
        for each in ended:
            assert set(each.missing) == set(each.keys) - self.there
            for who in each.who:
                del self.waiting[who]

    @rule(keys=st.lists(KEYS, max_size=3), unless=st.lists(KEYS, max_size=2))
    def wait(self, keys: list[str], unless: list[str]) -> None:
        self.last += 1
        self.waiting[self.last] = keys, unless
        self.heard(self.store.wait(self.last, keys, unless))

    @rule(key=KEYS)
    def come(self, key: str) -> None:
        self.there.add(key)
        self.heard(self.store.set([key], [b""]))

    @rule(key=KEYS)
    def go(self, key: str) -> None:
        assert self.store.delete(key) == (key in self.there)
        self.there.discard(key)

    @rule(odd=st.booleans())
    def leave(self, odd: bool) -> None:
        gone = self.store.leave(lambda who: who % 2 == odd)
        assert sorted(gone) == [who for who in self.waiting if who % 2 == odd]
        for who in gone:
            del self.waiting[who]

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        for keys, unless in self.waiting.values():
            assert not self.there.issuperset(keys)
            assert self.there.isdisjoint(unless)


TestWaits = Waits.TestCase
TestWaits.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
