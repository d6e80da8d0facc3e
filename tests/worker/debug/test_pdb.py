"""pdb for ranks, by itself: what is typed comes from a list, what it says goes into another."""

import asyncio
import bdb
import contextlib
import linecache
import queue
import sys
import threading
import types
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb.core.wire.messages.debug import DebugEvent, DebugInput
from monarch_nb.worker.debug.channel import MAX_CHARS, DebugChannel
from monarch_nb.worker.debug.pdb import RankPdb
from tests.notebook.prompts import STOPS_EARLY

USER = """\
def leaf(n):
    return n + 1

def step(n):
    stop()
    m = leaf(n)
    k = m * 2
    return k

async def waits(n):
    import asyncio
    stop()
    await asyncio.sleep(0)
    m = n + 1
    return m

async def fails():
    import asyncio
    stop()
    await asyncio.sleep(0)
    1 / 0
"""
FILE = "/users/train.py"
FIRST = ["n"] if STOPS_EARLY else []
OURS = "def call(action, *args):\n    return action(*args)\n"


class Prompt:
    """A debugger and who types at it."""

    def __init__(self, *lines: str) -> None:
        self.events: list[DebugEvent] = []
        self.places: list[tuple[str, int]] = []
        self.channel = DebugChannel(1, self.events.append)
        self.pdb = RankPdb(self.channel, self.paused, lambda _: None)
        for seq, line in enumerate([*FIRST, *lines] if lines else [], 1):
            self.channel.put(DebugInput(1, seq, "line", line))
        self.user = types.ModuleType("user_code")
        self.user.stop = lambda: self.pdb.begin(sys._getframe(1))
        linecache.cache[FILE] = (len(USER), None, USER.splitlines(keepends=True), FILE)
        exec(compile(USER, FILE, "exec"), vars(self.user))
        runs = types.ModuleType("monarch_nb.worker.runs")
        exec(compile(OURS, f"{Path(monarch_nb.__file__).parent}/runs.py", "exec"), vars(runs))
        self._runs = runs
        self.is_traced_after = False

    def answers(self, ask) -> None:
        """The next lines come from there."""
        self.channel._next = ask

    def call(self, *args):
        """Let the runtime call the user, in a thread of its own, whose tracing is nobody else's."""
        done: queue.SimpleQueue = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put((self._runs.call(*args), None))
            except BaseException as error:
                done.put((None, error))
            self.is_traced_after = sys.gettrace() is not None

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(20)
        value, error = done.get_nowait()
        if error is not None:
            raise error
        return value

    def paused(self, debugger: RankPdb, frame: types.FrameType) -> None:
        self.places.append((frame.f_code.co_name, debugger.stopped_at))

    @property
    def said(self) -> list[str]:
        texts = [event.text for event in self.events if event.event == "asks"]
        return texts[len(FIRST) :]

    @property
    def went(self) -> list[bool]:
        """Of each time the code went on, whether it was a step."""
        steps = [event.stepping for event in self.events if event.event == "goes"]
        return steps[len(FIRST) :]


def test_steps_and_answers():
    prompt = Prompt("p n", "n", "p m", "c")
    assert prompt.call(prompt.user.step, 3) == 8
    assert prompt.places[0][0] == "step"
    assert "3\n" in prompt.said[1]
    assert "-> k = m * 2" in prompt.said[2]
    assert prompt.said[3] == "4\n"
    assert prompt.went == [True, False]
    assert not prompt.is_traced_after


def test_into_and_out_of_a_call():
    prompt = Prompt("s", "r", "c")
    prompt.call(prompt.user.step, 3)
    assert ("leaf", 1) in prompt.places
    assert any("--Return--" in text for text in prompt.said)


def test_nothing_is_traced_after_the_end_of_the_users_code():
    prompt = Prompt(*["n"] * 9)
    prompt.call(prompt.user.step, 1)
    assert not prompt.is_traced_after
    assert prompt.went[-1] is False
    assert {name for name, _ in prompt.places} == {"step"}


def test_through_an_await():
    prompt = Prompt("n", "n", "p m", "c")
    assert prompt.call(asyncio.run, prompt.user.waits(3)) == 4
    assert any("-> return m" in text for text in prompt.said)
    assert "4\n" in prompt.said
    assert not prompt.is_traced_after


def test_an_error_that_leaves_a_coroutine_ends_it():
    prompt = Prompt("n", "n", "n", "n")
    with pytest.raises(ZeroDivisionError):
        prompt.call(asyncio.run, prompt.user.fails())
    assert not prompt.is_traced_after


def test_an_interrupt_comes_out_of_the_prompt():
    prompt = Prompt()

    def interrupted() -> dict:
        raise KeyboardInterrupt

    prompt.answers(interrupted)
    with pytest.raises(KeyboardInterrupt):
        prompt.call(prompt.user.step, 1)
    assert not prompt.pdb.is_asking
    assert not prompt.pdb.stack, "its frames would hold what was stopped, tensors as well"
    assert not any("pdb" in name for name in vars(prompt.user))


def test_nothing_of_the_debugger_stays_in_any_module_that_was_looked_at():
    """From Python 3.12 on pdb keeps the frame that is looked at in the globals of its module."""
    other = types.ModuleType("other")
    exec(compile("def outer(call):\n    return call(1)\n", "/users/other.py", "exec"), vars(other))
    for last in ("c", "q"):
        prompt = Prompt("up", last)
        with contextlib.suppress(bdb.BdbQuit):
            prompt.call(other.outer, prompt.user.step)
        assert not any("pdb" in name for name in [*vars(prompt.user), *vars(other)])


def test_quit_says_so():
    prompt = Prompt("q")
    with pytest.raises(Exception, match="quit in the debugger"):
        prompt.call(prompt.user.step, 1)


def test_own_breakpoints_hold_the_thread_and_clear_lets_it_go():
    prompt = Prompt("b 7", "c", "p m", "clear", "y", "c")
    assert prompt.call(prompt.user.step, 3) == 8
    assert "4\n" in prompt.said
    assert any(event.prompt == "Clear all breaks? " for event in prompt.events)
    assert not prompt.is_traced_after


def test_a_condition_that_cannot_be_read_is_refused():
    prompt = Prompt("b 7, m ==", "b 7, m == 4", "condition 1 m +", "c", "p m", "clear", "y", "c")
    prompt.call(prompt.user.step, 3)
    assert prompt.said[1].startswith("*** the condition 'm ==' cannot be read: ")
    assert "Breakpoint" in prompt.said[2]
    assert prompt.said[3].startswith("*** the condition 'm +' cannot be read: ")
    assert "4\n" in prompt.said


def test_much_text_is_cut_and_counted():
    prompt = Prompt("p 'a' * 1_000_000", "c")
    prompt.call(prompt.user.step, 1)
    assert len(prompt.said[1]) < MAX_CHARS + 100
    assert prompt.said[1].endswith("... 900003 more characters\n")


def test_words_are_completed():
    prompt = Prompt()
    asked = iter([
        DebugInput(1, 1, "complete", "whati"),
        DebugInput(1, 2, "complete", "p n.bit_l"),
        DebugInput(1, 3, "complete", "p nothing_like_this"),
        DebugInput(1, 4, "line", "c"),
    ])  # fmt: skip
    prompt.answers(lambda: next(asked))
    prompt.call(prompt.user.step, 1)
    words = [event.words for event in prompt.events if event.event == "completes"]
    assert words == [["whatis"], ["n.bit_length"], []]


def test_the_frames_of_a_failure_are_looked_at_and_not_stepped():
    prompt = Prompt("p m", "up", "n", "q")
    for _ in FIRST:
        prompt.channel._next()
    try:
        exec(compile("m = 3\n1 / 0", "/users/a.py", "exec"), {})
    except ZeroDivisionError as error:
        failure = error.__traceback__
    prompt.pdb.reset()
    prompt.call(prompt.pdb.interaction, None, failure)
    assert "3\n" in prompt.said
    assert any("it has failed here" in text for text in prompt.said)
    assert prompt.events[-1].stepping is False


def test_who_has_looked_into_a_failure_is_done_with_it_when_he_says_so():
    prompt = Prompt("q")
    for _ in FIRST:
        prompt.channel._next()
    told_before = []

    @contextlib.contextmanager
    def looking():
        yield
        told_before.append(any(event.event == "goes" for event in prompt.events))

    try:
        exec(compile("1 / 0", "/users/a.py", "exec"), {})
    except ZeroDivisionError as error:
        failure = error.__traceback__
    debugger = prompt.pdb.of_kind("post-mortem", looking())
    debugger.reset()
    prompt.call(debugger.interaction, None, failure)
    assert told_before == [False]
    assert [event.stepping for event in prompt.events if event.event == "goes"] == [False]
