"""SIGINT to a rank that runs a cell: the cell ends where it is, and its outcome always comes."""

import signal
import subprocess
import sys

import pytest

from monarch_nb.worker.cells.shell import CellShell
from tests.support import eventually
from tests.worker.cells.cell_rank import FILE


@pytest.mark.parametrize("code, line", [
    ("while not here(): here = bool", 3),
    ("import time\nhere(); time.sleep(60)", 4),
    ("import asyncio\nhere(); await asyncio.sleep(60)", 4),
    ("import asyncio\nhere(); asyncio.run(asyncio.sleep(60))", 4),
    ("import asyncio\nasync def spin():\n    here()\n    while True: pass\nawait spin()", 7),
    ("import threading\nhere(); threading.Event().wait()", 4),
])  # fmt: skip
def test_an_interrupt_ends_the_cell_where_it_is(rank, tmp_path, code, line):
    answer = rank.interrupted(code, tmp_path)
    assert answer["status"] == "interrupted"
    assert answer["error"]["ename"] == "KeyboardInterrupt"
    assert f'  File "{FILE}", line {line}, in <module>' in answer["trace"]
    assert rank.ok("1 + 1")["text"] == "2"


def test_an_interrupted_await_runs_its_finally(rank, tmp_path):
    answer = rank.interrupted(
        "import asyncio\ntry:\n    here(); await asyncio.sleep(60)\nfinally:\n"
        "    await asyncio.sleep(0); print('unwound')",
        tmp_path,
    )
    assert (answer["status"], answer["said"]) == ("interrupted", "unwound\n")
    assert f'  File "{FILE}", line 5, in <module>' in answer["trace"]


def test_an_interrupted_command_ends_the_cell_too(rank, tmp_path):
    here = tmp_path / "there"
    rank.start(f"!touch {here}; sleep 60\nprint('goes on')")
    eventually(here.exists, 10)
    rank.process.send_signal(signal.SIGINT)
    answer = rank.answer()
    assert answer["status"] == "interrupted"
    assert "goes on" not in answer["said"]


def test_a_message_is_not_torn_by_an_interrupt():
    shell, sent = CellShell({}), []

    def publish(message):
        assert shell.interrupt()
        sent.append(message)

    assert not shell.interrupt(), "no cell runs"
    shell._publish = publish
    shell._gate.open()
    with pytest.raises(KeyboardInterrupt):
        shell.show({"type": "display_data"})
    assert sent == [{"type": "display_data"}]
    with pytest.raises(KeyboardInterrupt):
        shell.interrupt()


def test_a_storm_of_interrupts_loses_no_answer(rank):
    rank.ok("1")
    for _ in range(40):
        rank.start("for i in range(3): display(i)\ni")
        for _ in range(5):
            rank.process.send_signal(signal.SIGINT)
        answer = rank.answer()
        assert answer["status"] in ("ok", "interrupted")
        assert all(one["data"] for one in answer["shown"])
    assert rank.ok("'alive'")["text"] == "'alive'"


NUDGED = """
import signal, sys, threading, time
from monarch_nb.process import interrupts
interrupts.allow_wakeups()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # another thread gets the signal
def strike():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    interrupts.interrupt_main()
begun = time.monotonic()
try:
    threading.Timer(0.3, strike).start()
    time.sleep(20)
except KeyboardInterrupt:
    print("noticed", time.monotonic() - begun < 5)
"""


def test_a_signal_that_came_just_before_a_call_that_blocks_is_noticed():
    """Python knows of it, and nothing wakes the main thread."""
    done = subprocess.run(
        [sys.executable, "-c", NUDGED], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "noticed True\n"
