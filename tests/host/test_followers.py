"""Who looks at ranks and reads what they have logged: what it is told, when it is forgotten."""

import math

import pytest

from monarch_nb.core.wire.frames import OUTPUT_PORT
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.keeping import Followed, Printed
from monarch_nb.data.record_log import RecordLog, output_log
from monarch_nb.host.agent.followers import FOLLOW_S, PART_BYTES, Followers

ME, OTHER = 5, 6


@pytest.fixture
def followers(tmp_path):
    found = Followers(tmp_path)
    yield found
    found.expire(math.inf)


@pytest.fixture
def log_of(tmp_path):
    """A log of a process, with these texts in it."""
    logs = []

    def begin(process: int, *texts: str) -> RecordLog:
        logs.append(RecordLog(output_log(tmp_path, process), 64 << 20))
        add(logs[-1], *texts)
        return logs[-1]

    yield begin
    for log in logs:
        log.close()


def add(log: RecordLog, *texts: str, port: int = OUTPUT_PORT) -> None:
    for text in texts:
        log.append(0, port, 0.0, text.encode())


def test_it_is_told_what_was_logged_then_what_is_new(followers, log_of):
    log = log_of(10, "one", "two")
    followers.begin(ME, 0.0)
    assert followers.read(ME, [10], 0.0) == Followed(
        [Printed(10, "one"), Printed(10, "two")], is_all=True
    )
    assert followers.read(ME, [10], 0.1) == Followed([], is_all=True)
    add(log, "three")
    add(log, "of a widget", port=7)
    followers.begin(OTHER, 0.2)
    assert followers.read(ME, [10], 0.2) == Followed([Printed(10, "three")], is_all=True)
    assert len(followers.read(OTHER, [10], 0.2).printed) == 3


def test_large_logs_come_in_parts_and_none_waits_for_another_to_end(followers, log_of):
    lines = [f"{number:06}" * 1_000 for number in range(200)]  # 1.2 MB
    log_of(10, *lines)
    log_of(11, "short")
    followers.begin(ME, 0.0)
    first = followers.read(ME, [10, 11], 0.0)
    assert not first.is_all
    assert sum(len(each.output) for each in first.printed) <= PART_BYTES
    second = followers.read(ME, [10, 11], 0.0)
    assert second.printed[0] == Printed(11, "short")
    got = [*first.printed, *second.printed[1:]]
    while not (part := followers.read(ME, [10, 11], 0.0)).is_all:
        got += part.printed
    got += part.printed
    assert got == [Printed(10, line) for line in lines], "in order, each once"


def test_a_process_that_is_new_is_told_of_from_its_begin(followers, log_of):
    followers.begin(ME, 0.0)
    assert followers.read(ME, [10], 0.0) == Followed([], is_all=True), "it logs nothing yet"
    log_of(11, "healed")
    assert followers.read(ME, [11], 0.0) == Followed([Printed(11, "healed")], is_all=True)


def test_who_does_not_ask_for_long_is_forgotten_and_told_so(followers):
    assert followers.due() is None
    followers.begin(ME, 0.0)
    followers.begin(OTHER, 1.0)
    followers.read(ME, [10], 20.0)
    assert followers.due() == 1.0 + FOLLOW_S
    assert followers.expire(FOLLOW_S) == []
    assert followers.expire(1.0 + FOLLOW_S) == [OTHER]
    assert isinstance(followers.read(OTHER, [10], 40.0), Refused)
    assert followers.read(ME, [10], 40.0) == Followed([], is_all=True)


def test_strangers_are_told_nothing(followers, log_of):
    log_of(10, "secret")
    assert isinstance(followers.read(ME, [10], 0.0), Refused)
