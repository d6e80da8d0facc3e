"""pdb on the ranks, at the prompt of the cell that waits."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from textwrap import dedent

import pytest

from tests.notebook.prompts import STOPS_EARLY, Prompt
from tests.notebook.ranks import pids_of_ranks

FIRST_CELLS = ["%mesh up --gpus 4"]

pytestmark = pytest.mark.timeout(120)

STEP = """\
def step(x):
    y = x * 2
    breakpoint()
    z = y + rank
    return z
"""
ALL = {0, 1, 2, 3}
ON_ALL = f"%%mesh\n{STEP}step(21)"
PROMPT_S = 0.15
ANSWER_S = 0.03


def test_the_cell_says_who_stopped_where_and_asks(kernel):
    with Prompt(kernel, ON_ALL) as prompt:
        assert prompt.at() == "(rank 0) "
        prompt.sees("ranks 0-3 at Cell In[")
        at = ":4 step()\n-> breakpoint()\n" if STOPS_EARLY else ":5 step()\n-> z = y + rank\n"
        prompt.sees(at)
        prompt.reply("p x, y")
        prompt.sees("(21, 42)\n")
        prompt.type("continue")
    assert prompt.cell.status == "ok"
    assert "[3] 45" in prompt.cell.shown


def test_one_rank_is_stepped_while_others_stay(kernel):
    with Prompt(kernel, ON_ALL, ALL) as prompt:
        prompt.type("rank 2")
        prompt.type("n", at="(rank 2) ")
        prompt.sees("-> return z")
        prompt.type("p z")
        prompt.sees("44\n")
        prompt.type("rank 1")
        prompt.type("p 'z' in locals()")
        prompt.sees("False\n")
        prompt.type("c")
        prompt.type("p rank", at="(rank 0) ")
        prompt.type("continue")
    assert prompt.cell.status == "ok"


def test_a_command_is_cast_and_equal_answers_are_told_once(kernel):
    with Prompt(kernel, ON_ALL, ALL) as prompt:
        prompt.type("cast 0-2 p y")
        prompt.sees("ranks 0-2: 42\n")
        prompt.type("cast gpus=1:3 p y + rank")
        prompt.sees("rank 1: 43\nrank 2: 44\n")
        prompt.type("cast all n")
        prompt.sees("ranks 0-3:\n> Cell In[")
        prompt.type("cast ranks(gpus=(0,3)) p z")
        prompt.sees("rank 0: 42\nrank 3: 45\n")
        prompt.type("cast 7 n")
        prompt.sees("no rank 7")
        prompt.type("cast 1")
        prompt.sees("cast needs a command")
        prompt.type("continue")


def test_words_for_all_ranks(kernel):
    with Prompt(kernel, f"%%mesh 1-2\n{STEP}step(1)", {1, 2}) as prompt:
        prompt.type("ranks")
        prompt.sees("gpus=2")
        prompt.type("where*")
        prompt.sees("ranks 1-2:\n")
        prompt.sees("ranks 0,3: idle\n")
        prompt.type("detach")
        prompt.type("list", at="(mesh) ")
        prompt.sees("gpus=1")
        prompt.type("nonsense")
        prompt.sees("there is no command 'nonsense'")
        prompt.type("attach 0")
        prompt.sees("rank 0 is not stopped here. Stopped: ranks 1-2")
        prompt.type("a 2")
        prompt.type("p rank", at="(rank 2) ")
        prompt.sees("2\n")
        prompt.type("help")
        prompt.sees("cast 0-2 COMMAND")
        prompt.type("continue")


def test_all_of_pdb_works(kernel):
    with Prompt(kernel, ON_ALL, ALL) as prompt:
        for line, answer in (
            ("l", "  4  \t    breakpoint()"),
            ("where", "<module>()"),
            ("up", "-> step(21)"),
            ("down", "-> z = y + rank"),
            ("args", "x = 21"),
            ("display y", "display y: 42"),
            ("!y = 7", ""),
            ("whatis y", "<class 'int'>"),
            ("b 6", "Breakpoint 1 at"),
            ("b", "Num Type"),
            ("nonsense = ", "*** SyntaxError"),
            ("p 1/0", "*** ZeroDivisionError"),
            ("interact", "needs a terminal"),
            ("run", "run the cell again"),
            ("c", "[old: 42]"),
        ):
            prompt.type(line)
            prompt.sees(answer)
        prompt.type("clear", at="(rank 0) ")
        prompt.type("y", at="(rank 0) Clear all breaks? ")
        prompt.sees("Deleted breakpoints 1")
        prompt.type("p z")
        prompt.sees("7\n")
        prompt.type("continue")
    assert "[0] 7\n[1] 43" in prompt.cell.shown


def test_quit_ends_the_cell_of_one_rank(kernel):
    with Prompt(kernel, ON_ALL, ALL) as prompt:
        prompt.type("q")
        prompt.type("continue", at="(rank 1) ")
    assert "rank 0: bdb.BdbQuit: quit in the debugger" in prompt.cell.error
    assert "/bdb.py" not in prompt.cell.error


@pytest.mark.parametrize("last, told", [("x = 1", "--Return--"), ("x = 1 / 0", "ZeroDivision")])
def test_nothing_of_the_debugger_stays_among_the_names_of_a_rank(kernel, last, told):
    with Prompt(kernel, f"%%mesh 1\nbreakpoint()\n{last}", {1}) as prompt:
        prompt.type("n")
        prompt.sees(told)
        prompt.type("continue")
    names = "{'__return__', '__exception__'} & globals().keys()"
    assert kernel.ok(f"%%mesh 1\n{names}").shown.strip() == "[1] set()"


def test_a_breakpoint_in_a_module_and_by_pdb(kernel, tmp_path):
    (tmp_path / "train_it.py").write_text(
        "import pdb\n\ndef step(x):\n    pdb.set_trace()\n    return x + 1\n"
    )
    kernel.ok(f"%%mesh\nimport sys; sys.path.insert(0, {str(tmp_path)!r})\nimport train_it")
    with Prompt(kernel, "%%mesh\ntrain_it.step(3)", ALL) as prompt:
        at = "4 step()\n-> pdb.set_trace()\n" if STOPS_EARLY else "5 step()\n-> return x + 1\n"
        prompt.sees(f"ranks 0-3 at train_it.py:{at}")
        prompt.type("s")
        prompt.sees("--Return--")
        prompt.type("u")
        prompt.sees("-> train_it.step(3)")
        prompt.type("continue")


def test_ipythons_debugger_asks_here_too(kernel):
    cell = "%%mesh 2\nfrom IPython.core.debugger import set_trace\nx = 20\nset_trace()\ny = x + 2"
    with Prompt(kernel, cell) as prompt:
        prompt.type("n", at="(rank 2) ")
        prompt.type("p x + 1")
        prompt.sees("21\n")
        prompt.type("c")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_an_interrupt_at_the_prompt_ends_the_cell(kernel):
    for code in (ON_ALL, "%%mesh 2\nimport asyncio\nbreakpoint()\nawait asyncio.sleep(9)"):
        with Prompt(kernel, code) as prompt:
            prompt.at()
            assert kernel.stop_s(prompt.cell) < 0.5
            assert not kernel.is_asked(), "no question for a rank that is about to go on"
        assert "KeyboardInterrupt" in prompt.cell.error
    assert kernel.ok("%%mesh\n1 + 1").status == "ok"


@pytest.mark.parametrize("call", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_where_nobody_can_type_state_is_told_and_it_goes_on(kernel, call):
    step = STEP.replace("breakpoint()", call)
    cell = kernel.ok(f"%%mesh 1\n{step}[step(n) for n in range(3)]", allow_stdin=False)
    told = cell.text("stderr")
    assert (
        f"breakpoint in step(), line {4 if STOPS_EARLY else 5}: nobody can type here, going on\n"
        in told
    )
    assert "  x = 0\n" in told
    assert "  y = 0\n" in told
    assert told.count("going on") == 1, "a loop is not to flood the notebook"
    assert "[1, 3, 5]" in cell.shown


def test_an_expression_that_prints_a_hundred_megabytes_is_cut(kernel):
    with Prompt(kernel, "%%mesh 0\nbig = 'a' * 100_000_000\nbreakpoint()\nbig = None") as prompt:
        prompt.type("p big")
        prompt.sees("... 99900003 more characters")
        prompt.type("p len(big)")
        prompt.sees("100000000\n")
        prompt.type("c")
    assert len(prompt.cell.text()) < 200_000


def test_a_rank_that_runs_on_gives_the_prompt_back(kernel):
    code = f"%%mesh 0-1\nimport time\n{STEP}step(1)\nif rank == 0: time.sleep(1.5)\nx = 1"
    with Prompt(kernel, code, {0, 1}) as prompt:
        prompt.type("u", at="(rank 0) ")
        prompt.type("n")
        prompt.type("n")
        prompt.sees("rank 0 runs on; it may wait for rank 1, stopped here")
        prompt.type("p rank", at="(rank 1) ")
        prompt.sees("1\n")
        prompt.sees("rank 0 at Cell In[")
        prompt.type("continue")


def test_a_second_debugger_takes_a_prompt_over_when_it_is_told_to(kernel):
    pid = kernel.manager.provisioner.pid
    with Prompt(kernel, f"%%mesh 0\n{STEP}step(21)") as prompt:
        assert prompt.at() == "(rank 0) "
        with terminal(pid) as other:
            other.stdin.write("p y\nlist\nattach 0\np y\ndetach\n")
            other.stdin.flush()
            prompt.sees("the prompt was taken over by a terminal")
            assert prompt.at() == "(mesh) "
            shown, _ = other.communicate(timeout=30)
        assert other.returncode == 0
        assert shown.startswith("rank 0 at Cell In[")
        assert "(mesh) there is no command 'p y'; help shows them\n" in shown
        assert "(rank 0) 42\n" in shown
        prompt.reply("rank 0")
        prompt.type("p x", at="(rank 0) ")
        prompt.sees("21\n")
        prompt.type("continue")
    assert prompt.cell.status == "ok"


@contextlib.contextmanager
def terminal(pid: int) -> Iterator[subprocess.Popen[str]]:
    """A debugger of that kernel in a terminal, ended if it still runs then."""
    command = [sys.executable, "-m", "monarch_nb.control.cli", "debug", "--pid", str(pid)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_script_stops_too(kernel, tmp_path):
    (tmp_path / "script.py").write_text("x = 5\nbreakpoint()\nprint('end', x)\n")
    with Prompt(kernel, f"%mesh run {tmp_path}/script.py") as prompt:
        prompt.at()
        at = "2\n-> breakpoint()\n" if STOPS_EARLY else "3\n-> print('end', x)\n"
        prompt.sees(f"ranks 0-3 at script.py:{at}")
        prompt.reply("cast all x = 6")
        prompt.type("continue")
    assert "[0-3] end 6" in prompt.cell.text()


def test_a_thread_and_a_child_of_a_rank(kernel):
    code = """%%mesh 1
    import os, threading
    def work():
        v = 3
        breakpoint()
        v = 4
    thread = threading.Thread(target=work); thread.start(); thread.join()
    if not (child := os.fork()):
        breakpoint()
        os._exit(7)
    os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    """
    with Prompt(kernel, dedent(code)) as prompt:
        prompt.type("p v", at="(rank 1) ")
        prompt.sees("3\n")
        prompt.type("where")
        prompt.type("c")
    assert "[1] 7" in prompt.cell.shown
    assert "_bootstrap" not in prompt.cell.text()


def test_nothing_is_stopped_and_unknown_ranks(kernel):
    cell = kernel.run("%mesh debug", allow_stdin=True)
    assert cell.error.startswith("no rank is stopped in a debugger. breakpoint() in a cell")
    assert "nobody can type here" in kernel.run("%mesh debug", allow_stdin=False).error
    assert "mesh0 has no rank 9" in kernel.run("%mesh pm 9", allow_stdin=True).error


@pytest.mark.fault
def test_a_rank_that_dies_at_the_prompt(fresh):
    with Prompt(fresh, "%%mesh\nimport os\nbreakpoint()\nx = 1", ALL) as prompt:
        prompt.type("!os._exit(3)")
        prompt.sees("rank 0 is lost")
        prompt.type("p rank", at="(rank 1) ")
        prompt.sees("1\n")
        prompt.type("continue")
    assert "exited with code 3" in prompt.cell.error


@pytest.mark.fault
def test_a_rank_that_is_killed_while_its_prompt_is_open(fresh):
    pids = pids_of_ranks(fresh)
    fresh.ok(f"import os, signal; pids = {pids}")
    with Prompt(fresh, "%%mesh 0-1\nbreakpoint()\nx = 1", {0, 1}) as prompt:
        assert prompt.at() == "(rank 0) "
        os.kill(pids[0], signal.SIGKILL)
        prompt.type("continue", at="(rank 1) ")
    assert "rank 0: the process was killed by signal 9 (SIGKILL)" in prompt.cell.error


@pytest.mark.alone
def test_the_prompt_is_quick(kernel):
    asked, answered = [], []
    for _ in range(5):
        started = time.monotonic()
        with Prompt(kernel, "%%mesh\nbreakpoint()\nx = 1") as prompt:
            prompt.at()
            asked.append(time.monotonic() - started)
            for _ in range(5):
                typed = time.monotonic()
                prompt.reply("p rank")
                prompt.at()
                answered.append(time.monotonic() - typed)
            prompt.reply("continue")
    assert sorted(asked)[2] < PROMPT_S, asked
    assert sorted(answered)[12] < ANSWER_S, answered
