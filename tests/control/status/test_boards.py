"""What agents tell, on this process's clock; and the hosts that a snapshot names."""

import pytest

from monarch_nb.control.status.boards import Boards
from monarch_nb.control.status.mesh_view import KnownHosts
from monarch_nb.control.status.snapshots import HostStatus, Usage
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.agents import Board
from monarch_nb.process.exit import Exit

AGENT, OTHER, NEW = 1 << HOST_SHIFT, 2 << HOST_SHIFT, 1 << HOST_SHIFT | 9


def told(now_s: float, *ranks: list, usage: tuple[list, ...] = ()) -> Board:
    return Board(int(now_s * 1e9), list(ranks), list(usage))


def row(process: int, since_s: float) -> list:
    return [process, "busy", int(since_s * 1e9), "f", 500_000_000, 1, 2, 3, 4]


def since_of(boards: Boards, process: int) -> float:
    found, told = boards.rows[process]
    return told.time_s(found[2])


def test_times_of_other_hosts_are_told_on_our_clock():
    boards = Boards()
    boards.tell(AGENT, told(1000.0, row(7, 990.0)), 100.5)  # 0.5 s on the way
    assert since_of(boards, 7) == pytest.approx(90.5)
    boards.tell(AGENT, told(1001.0, row(8, 990.0)), 101.1)  # 0.1 s on the way
    boards.tell(AGENT, told(1002.0, row(9, 990.0)), 102.9)
    assert [since_of(boards, each) for each in (8, 9)] == pytest.approx([90.1, 90.1])
    found, told_at = boards.rows[9]
    assert found[3:] == ["f", 500_000_000, 1, 2, 3, 4]
    assert told_at.seen_at == pytest.approx(102.1)
    boards.tell(OTHER, told(5.0, [3, "starting", 0, "", 0, 0, 0, 0, 0]), 103.0)
    assert since_of(boards, 3) == 0.0


def test_news_is_taken_once_and_what_is_gone_is_forgotten():
    boards = Boards()
    usage = [8, 50, 1 << 30, None, None]
    boards.tell(AGENT, told(1.0, row(7, 0.5), usage=(usage,)), 1.0)
    boards.touch(9)
    assert boards.take_changed() == {7, 8, 9}
    assert boards.take_changed() == set()
    assert boards.usage == {8: Usage(50, 1 << 30)}
    boards.keep({7})
    assert (set(boards.rows), boards.usage) == ({7}, {})
    boards.clear()
    assert boards.rows == {}


def test_hosts_keep_their_places_and_two_of_one_name_are_told_apart():
    hosts, dead = KnownHosts(), {}
    hosts.use([OTHER])
    hosts.name(OTHER, "node")
    hosts.use([AGENT, OTHER])
    first = hosts.told(dead)
    assert first == (HostStatus("node", None), HostStatus("host 1", None))
    assert hosts.told(dead) is first
    hosts.name(AGENT, "node")
    assert [each.name for each in hosts.told(dead)] == ["node (1)", "node (2)"]
    dead[OTHER] = Exit(OTHER, reason="its host was shut down")
    assert [each.name for each in hosts.told(dead)] == ["node", "node"], "only one is there"
    assert hosts.places == {2: 0, 1: 1}


def test_a_host_has_ended_with_its_last_agent():
    hosts, dead = KnownHosts(), {}
    hosts.use([AGENT])
    dead[AGENT] = Exit(AGENT, reason="its agent was killed")
    assert hosts.told(dead)[0].ended == dead[AGENT].plainly()
    hosts.use([NEW])
    assert hosts.told(dead)[0].ended is None
