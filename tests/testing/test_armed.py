"""When an armed fault happens, in this very process: no mesh."""

import subprocess
import sys

import pytest

from monarch_nb.core import points
from monarch_nb.core.points import breaks, point
from monarch_nb.testing.armed import ArmedFault, faults

NUMBER = (0, 1)


class Happened(Exception):
    """What the faults here do."""


def happens(at: str = "step") -> bool:
    try:
        point(at)
    except Happened:
        return True
    return False


@pytest.fixture
def arm():
    made = []

    def arm(at, action="raise_", seconds=0.0, **options):
        made.append((0, len(made)))
        faults.arm(made[-1], ArmedFault(at, action, seconds, error=Happened, **options))
        return made[-1]

    yield arm
    for number in made:
        faults.count(number, remove=True)
    assert not points.armed


@pytest.mark.parametrize(
    "options, happened",
    [
        ({}, [1, 0, 0, 0]),
        ({"after": 2}, [0, 0, 1, 0]),
        ({"times": 2}, [1, 1, 0, 0]),
        ({"after": 1, "times": None}, [0, 1, 1, 1]),
    ],
)
def test_a_fault_happens_at_its_turns(arm, options, happened):
    number = arm("step", **options)
    assert [happens() for _ in happened] == happened
    assert faults.count(number, remove=False) == sum(happened)


def test_a_point_that_nobody_armed_is_passed(arm):
    arm("step")
    assert not happens("other")


def test_a_removed_fault_happens_no_more(arm):
    number = arm("step", times=None)
    other = arm("step", times=None)
    assert happens()
    assert faults.count(number, remove=True) == 1
    assert happens()
    assert faults.count(other, remove=True) == 1  # the first one raised before it
    assert not happens()
    assert faults.count(number, remove=False) == 0


def test_a_link_is_harmed_to_the_hosts_that_are_meant(arm):
    arm("link.send", "cut", hosts=frozenset([3]))
    assert not breaks("link.send", 2)
    assert breaks("link.send", 3)
    assert not breaks("link.send", 3)


def test_a_link_that_is_cut_gets_no_connection_for_a_while(arm):
    number = arm("link.send", "cut", 60.0, hosts=frozenset([3]))
    assert not breaks("link.connect", 3)
    assert breaks("link.send", 3)
    assert breaks("link.connect", 3)
    assert not breaks("link.connect", 2)
    faults.count(number, remove=True)
    assert not breaks("link.connect", 3)


def test_a_bit_of_a_record_is_another_one(arm):
    arm("link.send", "corrupt")
    record = bytearray(8)
    assert not breaks("link.send", 3, memoryview(record))
    assert record == bytearray([0] * 7 + [1])


@pytest.mark.parametrize("seconds", [0.1, 1e-9])  # the latter is over before the stop
def test_a_process_that_stops_itself_goes_on(seconds):
    stopping = f"ArmedFault('x', 'stop', {seconds}).passed(None)"
    program = f"from monarch_nb.testing.armed import ArmedFault; {stopping}; print('on')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout == "on\n"
