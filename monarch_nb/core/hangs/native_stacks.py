"""What `py-spy dump --native --json` writes, read into stacks: calls of C code between Python's.

A frame of C code has the name of its library as its file, and mostly no line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from monarch_nb.core.errors.records import is_internal
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.hangs.stacks import Frame, is_of_python


def read(text: str) -> list[Stack]:
    """Return the stacks of threads that run the user's code, the main thread's first.

    Raises `ValueError` for anything else than such a dump.
    """
    try:
        found = [_stack(thread) for thread in json.loads(text)]
    except (AttributeError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"no dump of py-spy: {error}") from None
    return sorted((each for each in found if each.frames), key=lambda stack: bool(stack.thread))


def _stack(thread: Mapping[str, Any]) -> Stack:
    is_main = thread.get("os_thread_id") == thread.get("pid")
    name = "" if is_main else str(thread.get("thread_name") or "another thread")
    frames = [_frame(each) for each in thread.get("frames", ())]
    return Stack(name, tuple(_of_user(frames)))


def _frame(told: Mapping[str, str | int]) -> Frame:
    file = str(told.get("filename") or told.get("module") or "?")
    return Frame(file, int(told.get("line") or 0), str(told.get("name")))


def _of_user(frames: list[Frame]) -> Iterator[Frame]:
    # Outermost first: from the user's first call on all, but what is ours: what waits for other
    # ranks does so in C code below a frame of ours
    has_begun = False
    for frame in reversed(frames):
        is_python = frame.file.endswith(".py") or frame.file.startswith("<")
        if is_python and is_internal(frame.file):
            continue
        has_begun = has_begun or (is_python and not is_of_python(frame.file))
        if has_begun:
            yield frame
