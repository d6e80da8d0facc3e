"""A dump of py-spy as stacks: the user's calls and C code below them."""

import json

from monarch_nb.core.errors import records
from monarch_nb.core.hangs.native_stacks import read
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.hangs.stacks import Frame

OURS = records.__file__


def frame(name: str, filename: str, line: int = 0) -> dict:
    return {"name": name, "filename": filename, "line": line, "module": None}


def thread(number: int, *frames: dict, name: str | None = None) -> dict:
    return {"pid": 7, "os_thread_id": number, "thread_name": name, "frames": list(frames)}


def test_c_code_is_shown_below_the_users_calls_and_not_above():
    main = thread(
        7,
        frame("poll", "/lib/libc.so.6"),
        frame("wait", OURS, 9),
        frame("all_reduce", "/site-packages/torch/distributed/distributed_c10d.py", 3),
        frame("step", "train.py", 41),
        frame("run", OURS, 5),
        frame("main", "/lib/libpython3.11.so"),
    )
    beside = thread(8, frame("f", "work.py", 1), name="loader")
    gloo = thread(9, frame("epoll_wait", "/lib/libc.so.6"), name="python")
    assert read(json.dumps([gloo, beside, main])) == [
        Stack("", (
            Frame("train.py", 41, "step"),
            Frame("/site-packages/torch/distributed/distributed_c10d.py", 3, "all_reduce"),
            Frame("/lib/libc.so.6", 0, "poll"),
        )),
        Stack("loader", (Frame("work.py", 1, "f"),)),
    ]  # fmt: skip
