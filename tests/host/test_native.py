"""py-spy beside the agent: it is waited for by nobody, ended when it takes too long, and what it
says is passed on. A fake stands for it where its own words do not matter."""

import os
import sys
import time

import pytest

from monarch_nb.core.wire.messages.agents import NativeStacks
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.status.inspect import LIMIT_S, Native
from tests.support import eventually, is_running

FAKE_DUMP = "#!/bin/sh\necho '[]'\n"
FAKE_REFUSAL = "#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n"
FAKE_SLOW = "#!/bin/sh\nexec sleep 60\n"


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """`spy(text)` puts a fake py-spy on the path."""

    def put(text: str) -> None:
        path = tmp_path / "py-spy"
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return put


def asked(*procs: int, limit_s: float = 0.0) -> NativeStacks:
    """What is answered; time ends after `limit_s`."""
    loop, answers = Loop(), []
    spies = Native(loop)
    started = time.monotonic()
    spies.ask(dict.fromkeys(procs, os.getpid()), started, answers.append)
    pids = spies.pids

    def is_answered() -> bool:
        loop.wait(0.01)
        if limit_s and time.monotonic() > started + limit_s:
            spies.expire(started + LIMIT_S + 1)
        return bool(answers)

    eventually(is_answered)
    assert (spies.pids, spies.due()) == (set(), None)
    loop.close()
    for pid in pids:
        eventually(lambda pid=pid: not is_running(pid))
    [answer] = answers
    return answer


def test_all_dumps_are_one_answer(spy):
    spy(FAKE_DUMP)
    assert asked(1, 2) == NativeStacks({"1": ("[]\n", ""), "2": ("[]\n", "")})


def test_no_rank_is_answered_too(spy):
    spy(FAKE_DUMP)
    assert asked() == NativeStacks({})


def test_what_it_is_not_allowed_is_said(spy):
    spy(FAKE_REFUSAL)
    assert asked(1) == NativeStacks({"1": ("", "Error: Permission Denied")})


def test_one_that_takes_too_long_is_ended(spy):
    spy(FAKE_SLOW)
    assert asked(1, limit_s=0.1) == NativeStacks({"1": ("", "py-spy took more than 8 s")})


def test_where_it_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    answers: list[Refused] = []
    Native(Loop()).ask({1: os.getpid()}, 0.0, answers.append)
    assert answers == [Refused("py-spy is not installed there: pip install py-spy")]
