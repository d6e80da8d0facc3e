"""A cell as a Jupyter client sees it: sent, until its reply is there and the kernel is idle.

Knows kernels and nothing of ranks. The client is jupyter_client's own, as any front end's.
"""

import os
import queue
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from benchmarks.measures import Figures, Measure, Scale
from benchmarks.timing import median, median_time, now, time_of

ANSWER_S = 120.0
TYPING_S = 3.0
TABS = 20
BUSY = {
    "sleep": "%%mesh\nimport time; print('started', flush=True); time.sleep(600)",
    "loop": "%%mesh\nprint('started', flush=True)\nwhile True: pass",
}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Notebook:
    kernel: str
    setup: Sequence[str]
    cell: str
    shows: str  # a pattern in what the cell, or `check` instead of it, shows: all ranks ran it
    teardown: Sequence[str] = ()
    check: str | None = None


def measures(notebook: Notebook) -> dict[str, Measure]:
    return {"cell": partial(cell, notebook), "cell_first": partial(first, notebook)}


def cell(notebook: Notebook, scale: Scale) -> Figures:
    """A cell, when the ranks are up and have run one already."""
    with kernel(notebook) as client:
        for code in notebook.setup:
            run(client, code)
        check(client, notebook)
        elapsed = median_time(lambda: run(client, notebook.cell), scale.casts)
        for code in notebook.teardown:
            run(client, code)
    return {"time": elapsed}


def first(notebook: Notebook, _scale: Scale) -> Figures:
    """From the setup, which a person has typed meanwhile, until a first cell has run everywhere."""
    with kernel(notebook) as client:
        time.sleep(TYPING_S)
        start = now()
        for code in notebook.setup:
            run(client, code)
        check(client, notebook)
        elapsed = now() - start
        for code in notebook.teardown:
            run(client, code)
    return {"time": elapsed}


def tab(notebook: Notebook, _scale: Scale) -> Figures:
    """Names of a rank, completed while a cell keeps all ranks busy."""
    figures: Figures = {}
    for busy, code in BUSY.items():
        with kernel(notebook) as client:
            for setup in notebook.setup:
                run(client, setup)
            client.execute(code)
            while "started" not in text_of(client.get_iopub_msg(timeout=ANSWER_S)["content"]):
                continue
            times = [time_of(partial(_complete, client)) for _ in range(TABS)]
        figures |= {f"{busy}_median": median(times), f"{busy}_worst": max(times)}
    return figures


def _complete(client: BlockingKernelClient) -> None:
    asked = client.complete("%%mesh\nworld_si")
    reply = client.get_shell_msg(timeout=ANSWER_S)
    if reply["parent_header"].get("msg_id") != asked:
        raise AssertionError(f"{reply['msg_type']} came, not the completions")
    if reply["content"]["matches"] != ["world_size"]:
        raise AssertionError(f"the completions are {reply['content']['matches']!r:.300}")


@contextmanager
def kernel(notebook: Notebook) -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(kernel_name=notebook.kernel, env=dict(os.environ))
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def check(client: BlockingKernelClient, notebook: Notebook) -> None:
    """nbdistributed's first cell times out where its workers take long to start: three tries."""
    shown = ""
    for _ in range(3):
        has_run, shown = tried(client, notebook)
        if has_run:
            return
    raise AssertionError(f"the cell shows {shown!r:.300}")


def tried(
    client: BlockingKernelClient, notebook: Notebook, within_s: float = ANSWER_S
) -> tuple[bool, str]:
    """Whether all ranks ran the cell that is sent to them now, and what it shows."""
    shown = run(client, notebook.check or notebook.cell, within_s)
    return bool(re.search(notebook.shows, shown, re.DOTALL)), shown


def run(client: BlockingKernelClient, code: str, within_s: float = ANSWER_S) -> str:
    """Execute `code`; all text that it shows, once the kernel is idle and has replied."""
    end = now() + within_s
    sent = client.execute(code)
    shown = [text_of(message["content"]) for message in messages(client, sent, end)]
    content = reply_to(client, sent, end)
    if content["status"] != "ok":
        raise RuntimeError(f"{code!r}: {content.get('ename')}: {content.get('evalue')}")
    return ANSI.sub("", "\n".join(filter(None, shown)))


def messages(client: BlockingKernelClient, sent: str, end: float) -> Iterator[dict[str, Any]]:
    """Those of that cell on iopub, as they come, until the kernel is idle."""
    idle = False
    while not idle:
        message = _next(client.get_iopub_msg, sent, end)
        yield message
        idle = message["content"].get("execution_state") == "idle"


def reply_to(client: BlockingKernelClient, sent: str, end: float) -> dict[str, Any]:
    content: dict[str, Any] = _next(client.get_shell_msg, sent, end)["content"]
    return content


def _next(get: Callable[..., dict[str, Any]], sent: str, end: float) -> dict[str, Any]:
    """The next message of that cell. Raises `TimeoutError` where there is none at `end`."""
    while (left_s := end - now()) > 0:
        try:
            message = get(timeout=left_s)
        except queue.Empty:
            break
        if message["parent_header"].get("msg_id") == sent:
            return message
    raise TimeoutError("a cell has not ended in time, or its kernel has died")


def text_of(content: dict[str, Any]) -> str:
    """What a message shows: a stream's text, or the text of something displayed."""
    return str(content.get("text") or content.get("data", {}).get("text/plain", ""))
