"""A log on disk: whole records in order, bounded, readable while it is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_nb.data.record_log import FollowedLog, RecordLog, log_parts, output_log, read_log
from tests.support import eventually


def numbers(path):
    return [record.number for record in read_log(path)]


def test_what_was_written_is_read_in_order(tmp_path):
    path = output_log(tmp_path, 0xAB)
    log = RecordLog(path, 1 << 20)
    log.append(5, 3, 1.5, b"one")
    log.append(6, 4, 2.5, b"")
    first, second = read_log(path)
    assert first == (5, 0, 3, 1.5, b"one")
    assert second == (6, 1, 4, 2.5, b"")
    assert log.number == 2
    assert path.stat().st_mode & 0o777 == 0o600
    log.close()


def test_where_nothing_was_written_nothing_is_read(tmp_path):
    assert numbers(tmp_path / "none") == []
    RecordLog(tmp_path / "empty", 1 << 20).close()
    assert numbers(tmp_path / "empty") == []


@pytest.mark.parametrize("limit", [4_000, 20_000])
def test_the_older_half_goes(tmp_path, limit):
    path = tmp_path / "log"
    log = RecordLog(path, limit)
    for _ in range(1_000):
        log.append(0, 0, 0.0, bytes(100))
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= limit
    found = numbers(path)
    assert found == list(range(found[0], 1_000)), "in order, none between lost"
    assert len(found) * 132 > limit / 2 - 200
    log.close()


def test_a_record_of_its_own_file(tmp_path):
    """One that is larger than half of the limit."""
    log = RecordLog(tmp_path / "log", 1_000)
    for size in (10, 5_000, 10):
        log.append(0, 0, 0.0, bytes(size))
    assert numbers(tmp_path / "log") == [1, 2]
    log.close()


def test_a_torn_end_is_not_read(tmp_path):
    path = tmp_path / "log"
    log = RecordLog(path, 1 << 20)
    log.append(0, 0, 0.0, b"whole")
    log.append(0, 0, 0.0, b"torn")
    log.close()
    os.truncate(path, path.stat().st_size - 2)
    assert numbers(path) == [0]


def test_an_old_log_is_not_written_on(tmp_path):
    RecordLog(tmp_path / "log", 1_000).close()
    with pytest.raises(FileExistsError):
        RecordLog(tmp_path / "log", 1_000)


def write_for_ever(path):
    log = RecordLog(Path(path), 1 << 16)
    while True:
        log.append(0, 0, 0.0, b"x" * 50)


def test_it_is_read_while_another_process_writes_and_is_killed(tmp_path):
    path = tmp_path / "log"
    program = f"from {__name__} import write_for_ever; write_for_ever({str(path)!r})"
    writer = subprocess.Popen([sys.executable, "-c", program])
    try:
        eventually(lambda: len(numbers(path)) > 100, 30)
        for _ in range(200):
            found = numbers(path)
            assert found == list(range(found[0], found[-1] + 1))
    finally:
        writer.kill()
        writer.wait()
    found = list(read_log(path))
    assert {record.payload for record in found} == {b"x" * 50}


def test_it_is_followed_over_the_end_of_a_file(tmp_path):
    path = tmp_path / "log"
    followed = FollowedLog(path)
    assert followed.read(1 << 20) == []
    log = RecordLog(path, 1_000)  # two files of some seven records each
    got = []
    for number in range(40):
        log.append(0, 0, 0.0, b"x" * 30)
        if number % 3 == 0:
            got += [record.number for record in followed.read(1 << 20)]
    got += [record.number for record in followed.read(1 << 20)]
    assert got == list(range(40))
    assert followed.read(1 << 20) == []
    followed.close()
    log.close()


def test_a_record_that_is_half_there_is_followed_when_it_is_whole(tmp_path):
    path = tmp_path / "log"
    log = RecordLog(path, 1 << 20)
    log.append(0, 0, 0.0, b"one")
    log.append(0, 0, 0.0, b"two")
    log.close()
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 2)
    followed = FollowedLog(path)
    assert [record.payload for record in followed.read(1 << 20)] == [b"one"]
    with path.open("ab") as file:
        file.write(whole[-2:])
    assert [record.payload for record in followed.read(1 << 20)] == [b"two"]
    followed.close()


def test_so_much_of_it_is_followed_at_a_time(tmp_path):
    path = tmp_path / "log"
    log = RecordLog(path, 1_000)
    got, log_of = [], FollowedLog(path)
    for number in range(10):
        log.append(0, 0, 0.0, bytes([number]) * 30)
    log.close()
    for _ in range(100):
        got += [record.payload[0] for record in log_of.read(100)]
        if not log_of.has_more:
            break
    assert got == list(range(got[0], 10)), "the older file may be left out"
    assert len(got) > 1
    log_of.close()


def test_its_parts_make_the_same_log_elsewhere(tmp_path):
    log = RecordLog(tmp_path / "log", 8 << 20)
    for number in range(100):
        log.append(number, 1, 0.5, bytes([number]) * 60_000)
    log.close()
    parts = list(log_parts(tmp_path / "log"))
    assert len(parts) > 3, "of a megabyte or so"
    (tmp_path / "copy").write_bytes(b"".join(parts))
    assert list(read_log(tmp_path / "copy")) == list(read_log(tmp_path / "log"))
    assert not list(log_parts(tmp_path / "none"))
