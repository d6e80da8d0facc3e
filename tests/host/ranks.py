"""What the tests of the host run as a rank: does what it is told, knows nothing of actors."""

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from monarch_nb.core.wire import frames
from monarch_nb.net.links import Links


def run(boot: dict[str, Any]) -> int:
    """Obey until told to exit. Answers `facts` to the controller; `do` names a function below."""
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    links = Links(
        Path(boot["run_dir"]), boot["proc"], lambda m: orders.put(json.loads(bytes(m.payload)))
    )
    links.start()
    send(links, boot, {"verb": "up", "proc": boot["proc"]})
    while (order := orders.get())["verb"] != "exit":
        if order["verb"] == "controller_gone":
            continue
        if order["verb"] == "facts":
            send(links, boot, {"verb": "facts", "proc": boot["proc"], **facts(boot)})
        else:
            send(links, boot, {"verb": "doing", "proc": boot["proc"]})
            DEEDS[order["verb"]](order)
            send(links, boot, {"verb": "done", "proc": boot["proc"]})
    links.close()
    return 0


def send(links: Links, boot: dict[str, Any], body: dict[str, Any]) -> None:
    header = frames.HEADER.pack(frames.CONTROL, 0, 0, 0, 0, 0, boot["proc"], 0)
    links.outbox(boot["controller"]).send(header + json.dumps(body).encode())


def refuse(boot: dict[str, Any]) -> int:
    """A main that raises."""
    raise RuntimeError(f"rank {boot['rank']} does not want to")


def facts(boot: dict[str, Any]) -> dict[str, Any]:
    import random

    torch = sys.modules.get("torch")
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "sid": os.getsid(0),
        "cwd": os.getcwd(),
        "path": sys.path,
        "env": dict(os.environ),
        "boot": boot,
        "random": random.random(),
        "torch_random": float(torch.rand(1)) if torch else None,
        "torch_threads": torch.get_num_threads() if torch else None,
        "modules": [name for name in ("torch", "IPython", "numpy") if name in sys.modules],
        "has_dynamo": "torch._dynamo" in sys.modules,
        "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)},
        "sigterm": str(signal.getsignal(signal.SIGTERM)),
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def grandchild(order: dict[str, Any]) -> None:
    """Start a process that leaves the session, by `how`."""
    how = order["how"]
    if how == "exec":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    elif how == "bare":  # without our environment
        subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    elif (child := os.fork()) == 0:
        os.setsid()
        if how == "daemon" and os.fork() != 0:
            os._exit(0)
        threading.Event().wait(1000)
    elif how == "daemon":
        os.waitpid(child, 0)  # only its child stays


def allocate(order: dict[str, Any]) -> None:
    hoard = [bytearray(os.urandom(1 << 20)) for _ in range(order["mib"])]
    print(len(hoard))


def write(order: dict[str, Any]) -> None:
    data = order["text"].encode() * order.get("times", 1)
    while data:
        data = data[os.write(order.get("fd", 1), data) :]


def write_and_die(order: dict[str, Any]) -> None:
    write(order)
    os.kill(os.getpid(), signal.SIGKILL)


def board(order: dict[str, Any]) -> None:
    import mmap

    from monarch_nb.core.wire import board as boards

    path, slot = order["board"]
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    mine = boards.BoardSlot(memory, slot)
    mine.write(boards.BUSY, time.monotonic_ns(), order["what"], 5, calls=2, failed=1, queue=7)


DEEDS = {
    "abort": lambda _: os.abort(),
    "allocate": allocate,
    "board": board,
    "exit_with": lambda order: os._exit(order["code"]),
    "grandchild": grandchild,
    "hold_gil": lambda order: ctypes.PyDLL(None).sleep(order["s"]),
    "refuse_to_end": lambda _: (
        signal.signal(signal.SIGTERM, signal.SIG_IGN),
        threading.Event().wait(1000),
    ),
    "segfault": lambda _: ctypes.string_at(0),
    "write": write,
    "write_and_die": write_and_die,
}
