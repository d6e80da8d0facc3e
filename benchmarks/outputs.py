"""What ranks print, as a Jupyter client sees it: how soon, in how many bytes, and a flood; and how
soon they stop.

Knows kernels and nothing of ranks; each cell is the system's own magic above code that prints.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient

from benchmarks.cells import ANSWER_S, Notebook, check, kernel, run
from benchmarks.measures import Figures, Measure, Scale
from benchmarks.timing import median, now

PRINTS = "import time\ntime.sleep(0.2); at = time.perf_counter(); print('said'); at"
PACED = (
    "import time\nfor step in range(100):\n"
    "    print(f'{rank} {step:3} ' + 'x' * 94); time.sleep(0.02)"
)
SLEEPS = "import time\nprint('said', flush=True)\ntime.sleep(8)"
SETTLED_S = 0.3  # all ranks sleep, not only the first that said so
STOPS = 3
LINES = 1_000_000
FLOOD = f"for i in range({LINES}): print('line', i)\nflooded = True"


@dataclass
class Seen:
    """The messages of one cell, and when the first of its text came."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    first_s: float = 0.0

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
        contents = [message["content"] for message in self.messages]
        return "\n".join(
            str(one.get("text") or one.get("data", {}).get("text/plain", "")) for one in contents
        )


def measures(notebook: Notebook, magic: str) -> dict[str, Measure]:
    return {
        "print": partial(first_output, notebook, magic),
        "paced": partial(paced, notebook, magic),
        "interrupt": partial(interrupt, notebook, magic),
    }


def first_output(notebook: Notebook, magic: str, scale: Scale) -> Figures:
    """From the last rank's `print` until the client has it."""
    with _ranks(notebook) as client:
        code = f"{magic}\n{PRINTS}"
        times = [_lateness(_watched(client, code)) for _ in range(max(scale.casts // 10, 3))]
    return {"time": median(times)}


def _lateness(seen: Seen) -> float:
    """The clock is that of the machine, the same in each process."""
    said = [float(text) for text in re.findall(r"\d+\.\d{3,}", seen.text)]
    return seen.first_s - max(said)


def paced(notebook: Notebook, magic: str, _scale: Scale) -> Figures:
    """100 lines of 100 bytes from each of 4 ranks, 50 a second; ranks know their `rank`."""
    with _ranks(notebook) as client:
        seen = _watched(client, f"{magic}\n{PACED}")
    return {"bytes": seen.size, "messages": len(seen.messages)}


def interrupt(notebook: Notebook, magic: str, _scale: Scale) -> Figures:
    """The stop button while ranks sleep: until the prompt is back, until a cell runs on them."""
    prompts, frees = [], []
    with _ranks(notebook) as client:
        for _ in range(STOPS):
            sent = client.execute(f"{magic}\n{SLEEPS}")
            while "said" not in json.dumps(_next(client, sent)["content"].get("text", "")):
                continue
            time.sleep(SETTLED_S)
            asked = now()
            client.parent.interrupt_kernel()
            client.get_shell_msg(timeout=ANSWER_S)
            prompts.append(now() - asked)
            for _ in _messages(client, sent):
                continue
            check(client, notebook)
            frees.append(now() - asked)
    return {"prompt": median(prompts), "free": median(frees)}


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
    seen = Seen()
    for message in _messages(client, client.execute(code)):
        seen.messages.append(message)
        is_output = message["msg_type"] != "execute_input"
        if is_output and not seen.first_s and "said" in json.dumps(message["content"]):
            seen.first_s = now()
    client.get_shell_msg(timeout=ANSWER_S)
    return seen


def _messages(client: BlockingKernelClient, sent: str) -> Iterator[dict[str, Any]]:
    idle = False
    while not idle:
        message = _next(client, sent)
        yield message
        idle = message["content"].get("execution_state") == "idle"


def _next(client: BlockingKernelClient, sent: str) -> dict[str, Any]:
    """The next message of that cell."""
    while True:
        message: dict[str, Any] = client.get_iopub_msg(timeout=ANSWER_S)
        if message["parent_header"].get("msg_id") == sent:
            return message
