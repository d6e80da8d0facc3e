"""A rank that crashes in C: its cell says where, in the user's words; the report is in the log."""

import pytest

from monarch_nb.core.hangs.stacks import Frame, crash

REPORT = """\
begun
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/lib/other.py", line 7 in wait

Current thread 0x00007f02 (most recent call first):
{frames}
Thread 0x00007f03 (most recent call first):
  File "/home/main.py", line 1 in <module>

Extension modules: numpy (total: 1)
"""


def test_the_report_of_faulthandler_is_read():
    frames = '  File "/lib/c.py", line 3 in call\n  File "/home/a b.py", line 12 in <module>\n'
    assert crash(REPORT.format(frames=frames)) == (
        "begun\n",
        "Segmentation fault",
        [Frame("/lib/c.py", 3, "call"), Frame("/home/a b.py", 12, "<module>")],
    )


def test_of_a_thread_without_python_the_main_thread_is_told():
    found = crash(REPORT.format(frames="  <no Python frame>\n"))
    assert found.frames == [Frame("/home/main.py", 1, "<module>")]


def test_what_is_no_report_is_none():
    assert crash("killed\n") is None
    assert crash("Fatal Python error: ") == ("", "", [])


# ------------------------------------------------------------------------------------- in a kernel


@pytest.mark.fault
def test_a_crash_names_the_line_of_the_cell(fresh):
    fresh.ok("%%mesh\nimport ctypes, os, threading")
    fresh.ok("%%mesh\nidle = [threading.Thread(target=threading.Event().wait) for _ in range(40)]")
    fresh.ok("%%mesh\nfor thread in idle: thread.daemon = True; thread.start()")
    cell = fresh.run(
        "%%mesh\ndef load(path):\n    return ctypes.string_at(0)\n"
        "_ = os.write(2, b'loading\\n')\nif rank in (1, 2): load('model.bin')"
    )
    number = cell.reply["content"]["execution_count"]
    head, printed = cell.error.split("The last lines it printed:")
    lines = head.splitlines()
    assert lines[:5] == [
        "ranks 1-2: the process was killed by signal 11 (SIGSEGV) at",
        f"  Cell In[{number}], line 5, in <module>",
        "    if rank in (1, 2): load('model.bin')",
        f"  Cell In[{number}], line 3, in load",
        "    return ctypes.string_at(0)",
    ]
    assert "string_at" in lines[5]
    assert len(lines) == 6
    assert printed.strip() == "loading\n\nType: %mesh heal, or %%mesh 0,3 for the others"
    assert cell.text("stderr") == "[0-3] loading\n"
    assert "Fatal Python error: Segmentation fault" in fresh.ok("%mesh logs 1 --tail 1000").text()


@pytest.mark.fault
def test_a_crash_in_a_call_is_told_in_the_same_words(fresh):
    fresh.ok(
        "from monarch_nb import Actor, endpoint\nimport ctypes\n"
        "class Loader(Actor):\n    @endpoint\n    def load(self):\n"
        "        ctypes.string_at(0)\nloader = mesh0.spawn('loader', Loader)"
    )
    cell = fresh.run("loader.slice(gpus=0).load.call_one().get()")
    assert "Segmentation fault, most recent call last:" in cell.error
    assert "in load" in cell.error
    assert "monarch_nb/worker" not in cell.error
    assert cell.text("stderr") == ""


def test_a_mesh_that_was_stopped_in_python_says_so(fresh):
    fresh.ok("import os\nmesh0.stop().get()")
    assert "No mesh is up" in fresh.ok("%mesh").shown
    cell = fresh.run("mesh0.heal()")
    assert "already been stopped" in cell.error
    assert "mesh0 is up" in fresh.ok("%mesh up --gpus 2", timeout_s=30).text()
    assert "2 ranks" in fresh.ok("%mesh").shown
