"""What ranks print, as a Jupyter client sees it: how soon, in how many bytes, and a flood; and how
soon they stop.

Knows kernels and nothing of ranks; each cell is the system's own magic above code that prints.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient

from benchmarks.cells import (
    ANSWER_S,
    Notebook,
    check,
    kernel,
    messages,
    reply_to,
    run,
    text_of,
    tried,
)
from benchmarks.measures import Figures, Measure, Scale
from benchmarks.processes import alive, descendants
from benchmarks.timing import median, now

PRINTS = "import time\ntime.sleep(0.2); at = time.perf_counter(); print('said'); at"
PACED = (
    "import time\nfor step in range(100):\n"
    "    print(f'{rank} {step:3} ' + 'x' * 94); time.sleep(0.02)"
)
SLEEPS = "import time\nprint('said', flush=True)\ntime.sleep(8)"
SETTLED_S = 0.3  # all ranks sleep, not only the first that said so
STOPS = 3
STOP_S = 60.0  # after this, nothing has stopped
LINES = 1_000_000
FLOOD = f"for i in range({LINES}): print('line', i)\nflooded = True"


@dataclass
class Seen:
    """The messages of one cell, and when the last came that shows what a rank said."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    said_s: float = 0.0

    @property
    def size(self) -> int:
        parts = ("header", "parent_header", "metadata", "content")
        return sum(
            len(json.dumps(message[part], default=str))
            for message in self.messages
            for part in parts
        )

    @property
    def text(self) -> str:
        return "\n".join(text_of(message["content"]) for message in self.messages)


def measures(notebook: Notebook, magic: str) -> dict[str, Measure]:
    return {
        "print": partial(printed, notebook, magic),
        "paced": partial(paced, notebook, magic),
        "interrupt": partial(interrupt, notebook, magic),
    }


def printed(notebook: Notebook, magic: str, scale: Scale) -> Figures:
    """From the last rank's `print` until the client has it: that of all ranks."""
    with _ranks(notebook) as client:
        code = f"{magic}\n{PRINTS}"
        times = [_lateness(_watched(client, code)) for _ in range(max(scale.casts // 10, 3))]
    return {"time": median(times)}


def _lateness(seen: Seen) -> float:
    """The clock is that of the machine, the same in each process."""
    said = [float(text) for text in re.findall(r"\d+\.\d{3,}", seen.text)]
    if not said or not seen.said_s:
        raise AssertionError(f"the cell shows {seen.text!r:.300}")
    return seen.said_s - max(said)


def paced(notebook: Notebook, magic: str, _scale: Scale) -> Figures:
    """100 lines of 100 bytes from each of 4 ranks, 50 a second; ranks know their `rank`."""
    with _ranks(notebook) as client:
        seen = _watched(client, f"{magic}\n{PACED}")
    return {"bytes": seen.size, "messages": len(seen.messages)}


@dataclass
class Stop:
    """One press of the stop button. A time is `inf` where nothing came within `STOP_S`."""

    prompt_s: float = inf
    free_s: float = inf
    dropped: int = 0  # cells that were sent before the one that all ranks ran
    why: str = ""  # there is no such time


class _Stuck(Exception):
    """The ranks did not come back: nothing more can be asked of them, not even to go."""


def interrupt(notebook: Notebook, magic: str, _scale: Scale) -> Figures:
    """The stop button while ranks sleep: until the prompt is back, until a cell runs on them.

    That cell is sent again where it was dropped, as a person would do.
    """
    stops: list[Stop] = []
    with suppress(_Stuck), _ranks(notebook) as client:
        for _ in range(STOPS):
            stops.append(_stopped(client, notebook, _asleep(client, magic)))
            if stops[-1].why:
                raise _Stuck
    why, back = stops[-1].why, stops[-1].prompt_s < inf
    return {
        "prompt": median(stop.prompt_s for stop in stops) if back else why,
        "free": why or median(stop.free_s for stop in stops),
        "dropped": why or sum(stop.dropped for stop in stops),
    }


def _asleep(client: BlockingKernelClient, magic: str) -> str:
    """Send the cell that is to be stopped, and wait until its ranks are in it."""
    sent = client.execute(f"{magic}\n{SLEEPS}")
    for message in messages(client, sent, now() + ANSWER_S):
        if "said" in text_of(message["content"]):
            time.sleep(SETTLED_S)
            return sent
    raise AssertionError("the cell has ended and shown nothing of what its ranks printed")


def _stopped(client: BlockingKernelClient, notebook: Notebook, sent: str) -> Stop:
    """Stop the cell that was `sent`."""
    running = {pid for pid in descendants(os.getpid()) if alive(pid)}
    stop, asked = Stop(), now()
    client.parent.interrupt_kernel()
    end = asked + STOP_S
    try:
        reply_to(client, sent, end)
        stop.prompt_s = now() - asked
        for _ in messages(client, sent, end):
            continue
        while not _has_run(client, notebook, end):
            stop.dropped += 1
        stop.free_s = now() - asked
    except TimeoutError:
        ended = sum(not alive(pid) for pid in running)
        stop.why = f"not within {STOP_S:g} s"
        stop.why += f", {ended} of {len(running)} processes had ended" if ended else ""
    return stop


def _has_run(client: BlockingKernelClient, notebook: Notebook, end: float) -> bool:
    try:
        return tried(client, notebook, end - now())[0]
    except RuntimeError:  # an error says that it was dropped; others drop it and say nothing
        return False


def flood(notebook: Notebook, _scale: Scale) -> Figures:
    """A million lines of one rank in the background, while the kernel is asked for 1+1."""
    with _ranks(notebook) as client:
        start = now()
        run(client, f"%%mesh --noblock -o flooding 0\n{FLOOD}")
        worst = 0.0
        while "True" not in run(client, "flooding.done"):
            asked = now()
            run(client, "1+1")
            worst = max(worst, now() - asked)
        elapsed = now() - start
        _expect_all(Path(run(client, "%mesh logs").rsplit(": ", 1)[1].strip()))
    return {"time": elapsed, "answer": worst}


def _expect_all(folder: Path) -> None:
    numbers = re.findall(r"^line (\d+)$", (folder / "mesh0.0.log").read_text(), re.MULTILINE)
    if numbers != [str(number) for number in range(LINES)]:
        raise AssertionError(f"the log has {len(numbers)} of {LINES} lines")


@contextmanager
def _ranks(notebook: Notebook) -> Iterator[BlockingKernelClient]:
    """The notebook's kernel with its ranks up."""
    with kernel(notebook) as client:
        for code in notebook.setup:
            run(client, code)
        check(client, notebook)
        yield client
        for code in notebook.teardown:
            run(client, code)


def _watched(client: BlockingKernelClient, code: str) -> Seen:
    seen, end = Seen(), now() + ANSWER_S
    sent = client.execute(code)
    for message in messages(client, sent, end):
        seen.messages.append(message)
        if "said" in text_of(message["content"]):
            seen.said_s = now()
    reply_to(client, sent, end)
    return seen
