"""What errors say, and that they travel: every class pickles, tracebacks show the user's lines."""

import linecache
import pickle
import threading
import traceback

import cloudpickle
import pytest

import monarch_nb
from monarch_nb import (
    Actor,
    ActorError,
    DeviceMeshError,
    LimitError,
    MeshError,
    MeshFailure,
    RankExited,
    RankUnreachable,
    SupervisionError,
    endpoint,
    errors,
)
from tests import support
from tests.actors.cast import Counter

pytestmark = pytest.mark.usefixtures("mesh_runtime")

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, MeshError)
]


# ------------------------------------------------------------------------------------- the classes


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_every_class_makes_the_round_trip(cls, dumps):
    is_raised = issubclass(cls, ActorError)  # its first argument is what was raised
    error = cls(ValueError("x"), "Message.") if is_raised else cls("a message")
    error.extra = "kept"
    again = pickle.loads(dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert again.args == error.args
    assert again.extra == "kept"


def test_all_of_them_are_public_and_documented():
    assert {cls.__name__ for cls in CLASSES} <= set(monarch_nb.__all__)
    assert all(cls.__doc__ for cls in CLASSES)


def test_errors_are_also_what_python_programmers_catch():
    assert issubclass(SupervisionError, RuntimeError)
    assert issubclass(monarch_nb.EncodeError, TypeError)
    assert issubclass(LimitError, MemoryError)
    assert issubclass(monarch_nb.AuthError, PermissionError)
    for cls in (RankExited, RankUnreachable, SupervisionError):
        assert issubclass(cls, DeviceMeshError)


def test_an_actor_error_as_monarch_makes_it():
    error = ActorError(ValueError("bad"))
    assert isinstance(error.exception, ValueError)
    assert error.message == "A remote actor call has failed."
    assert str(error) == (
        "A remote actor call has failed.\n"
        "Traceback of where the remote call failed (most recent call last):\n"
        "ValueError: bad\n"
    )
    assert error.__cause__ is error.exception
    assert ActorError(ValueError("bad"), "Mine.").message == "Mine."


def test_supervision_errors_know_their_endpoint():
    error = SupervisionError("text", ranks=(1, 2))
    error.endpoint = "a.b()"
    again = pickle.loads(pickle.dumps(error))
    assert (again.endpoint, again.ranks) == ("a.b()", (1, 2))


def test_limits_carry_numbers():
    again = pickle.loads(pickle.dumps(LimitError("too much", limit=1, size=2)))
    assert (again.limit, again.size) == (1, 2)


# ---------------------------------------------------------------------------------- over the wire


class Raising(Actor):
    """Raises what it is asked to."""

    @endpoint
    def by_name(self, name):
        globals()[name]()

    @endpoint
    def run(self, function):
        return function()


class Chained(Exception):
    pass


class NoPickle(Exception):
    def __init__(self, lock):
        super().__init__("cannot travel")
        self.lock = lock


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text either")


class NeedsTwo(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def plain():
    raise ValueError("plain")


def deeper():
    return plain()


def chained():
    try:
        plain()
    except ValueError as error:
        raise Chained("because of it") from error


def context_of():
    try:
        plain()
    except ValueError:
        return {}["missing"]


def no_pickle():
    raise NoPickle(threading.Lock())


def no_text():
    raise NoText


def needs_two():
    raise NeedsTwo("a", "b")


def group():
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def cyclic():
    error = ValueError("ring")
    error.__cause__ = Chained("of causes")
    error.__cause__.__cause__ = error
    raise error


def endless():
    return endless()


def huge():
    raise ValueError("x" * 10_000_000)


def noted():
    error = ValueError("noted")
    error.add_note("a note of the user's")
    raise error


@pytest.fixture(scope="module")
def raising(procs):
    return procs.slice(gpus=0).spawn("raising", Raising)


def raised_by(raising, name):
    error = raising.by_name.call_one(name).exception(timeout=10)
    assert isinstance(error, ActorError), error
    return error


def test_the_first_line_says_what_and_which_rank(procs, raising):
    assert str(raised_by(raising, "plain")).splitlines()[0] == "Actor call raising.by_name failed."
    many = procs.spawn("many", Counter)
    text = str(many.fail_on.call(2).exception())
    assert text.splitlines()[0] == "Actor call many.fail_on failed on rank 2 of 4."


def test_the_traceback_has_the_user_s_frames_only_with_their_source(raising):
    error = raised_by(raising, "deeper")
    text = str(error)
    assert "Traceback of where the remote call failed (most recent call last):" in text
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if not line.startswith(("File", "^"))][2:] == [
        "Traceback (most recent call last):",
        "globals()[name]()",
        "return plain()",
        'raise ValueError("plain")',
        "ValueError: plain",
    ]
    assert "monarch_nb/" not in text
    assert error.remote_traceback == error.exception_formatted
    assert isinstance(error.exception, ValueError)


def test_causes_and_contexts_are_shown(raising):
    text = str(raised_by(raising, "chained"))
    assert "The above exception was the direct cause of the following exception:" in text
    assert text.index("ValueError: plain") < text.index("Chained: because of it")
    text = str(raised_by(raising, "context_of"))
    assert "During handling of the above exception, another exception occurred:" in text
    assert "KeyError: 'missing'" in text


def test_notes_and_groups_are_shown(raising):
    assert "a note of the user's" in str(raised_by(raising, "noted"))
    error = raised_by(raising, "group")
    assert isinstance(error.exception, ExceptionGroup)
    assert all(word in str(error) for word in ("several", "ValueError: one", "KeyError: 'two'"))


@pytest.mark.parametrize(
    "name, words",
    [
        ("no_pickle", "NoPickle: cannot travel"),
        ("needs_two", "NeedsTwo: a b"),
        ("no_text", "NoText"),
        ("cyclic", "ValueError: ring"),
        ("endless", "RecursionError"),
        ("huge", "more characters"),
    ],
)
def test_hostile_exceptions_arrive_all_the_same(raising, name, words):
    error = raised_by(raising, name)
    assert words in str(error)
    assert len(str(error)) < 100_000
    assert isinstance(error.exception, BaseException)
    assert raising.run.call_one(int).get() == 0  # and the actor lives


def test_what_cannot_travel_is_stood_in_for(raising):
    error = raised_by(raising, "no_pickle")
    assert str(error.exception) == "NoPickle: cannot travel"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_errors_of_calls_travel_on(procs, raising):
    error = raised_by(raising, "chained")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank, again.record) == (str(error), error.rank, error.record)
    assert isinstance(again.exception, Chained)
    assert isinstance(again.__cause__, Chained)
    echo = procs.slice(gpus=1).spawn("echo", Counter).echo
    assert str(echo.call_one(error).get()) == str(error)


CELL = """
from monarch_nb import Actor, endpoint

class OfCell(Actor):
    @endpoint
    def fail(self):
        value = [1, 2, 3]
        return value["text"]  # a line of the cell
"""


def test_lines_of_cells_are_shown(procs):
    """A notebook's classes go by value; their source is known here and not on the rank."""
    name = "/tmp/ipykernel_1/12345.py"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    namespace = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), namespace)
    actor = procs.slice(gpus=0).spawn("cell", namespace["OfCell"])
    text = str(actor.fail.call_one().exception())
    del linecache.cache[name]
    assert 'return value["text"]  # a line of the cell' in text


class Relay(Actor):
    """Lets the error of an inner call through."""

    @endpoint
    def relay(self, raising, name):
        return raising.by_name.call_one(name).get()


def test_an_error_through_two_actors_is_told_once(procs, raising):
    relay = procs.slice(gpus=1).spawn("relay", Relay)
    error = relay.relay.call_one(raising, "plain").exception()
    text = str(error)
    assert isinstance(error.exception, ActorError)
    assert isinstance(error.exception.exception, ValueError)
    assert "Actor call relay.relay failed." in text
    assert "Actor call raising.by_name failed." in text
    assert text.count("ValueError: plain") == 1
    assert text.count('raise ValueError("plain")') == 1


# --------------------------------------------------------------------------------------- failures


def test_failures_travel(procs, failures):
    fragile = procs.spawn("fragile", Counter)
    fragile.slice(gpus=1).fail.broadcast("oh")
    failure = support.eventually(lambda: failures)[0]
    again = pickle.loads(pickle.dumps(failure))
    assert isinstance(again, MeshFailure)
    assert (str(again), again.report()) == (str(failure), failure.report())
    assert (again.mesh_name, again.crashed_ranks) == ("fragile", [1])
    assert again.mesh.sizes == {"gpus": 4}
    assert isinstance(again.cause, ValueError)
    echo = procs.slice(gpus=0).spawn("echo", Counter).echo
    back = echo.call_one(failure).get()
    assert back.report() == failure.report()
    assert isinstance(back.cause, ValueError)


def test_supervision_errors_travel(procs, failures):
    fragile = procs.spawn("fragile", Counter)
    fragile.slice(gpus=1).fail.broadcast("oh")
    support.eventually(lambda: failures)
    with pytest.raises(SupervisionError) as caught:
        fragile.get.call()
    error = caught.value
    assert error.ranks == (1,)
    assert error.endpoint == "fragile.get()"
    assert isinstance(error.failure, MeshFailure)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.ranks, again.endpoint) == (str(error), error.ranks, error.endpoint)
    assert again.failure.report() == error.failure.report()


def test_local_tracebacks_start_at_the_caller(raising):
    """`raise` of a kept error does not gather the frames of earlier raises."""
    answer = raising.by_name.call_one("plain")
    lengths = set()
    for _ in range(3):
        try:
            answer.get()
        except ActorError as error:
            lengths.add(len(traceback.extract_tb(error.__traceback__)))
    assert len(lengths) == 1
    assert max(lengths) <= 3
