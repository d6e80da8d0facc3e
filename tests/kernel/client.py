"""A front end for tests: it sends cells to a real kernel and keeps every message that comes."""

import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import zmq
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from monarch_nb.control.keeping import kept_record
from tests.support import descendants, describe_process, eventually

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DISPLAYS = ("display_data", "execute_result")


@dataclass
class Cell:
    """What a front end received for one execute request."""

    msg_id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    reply: dict[str, Any] | None = None
    finished_s: float = 0.0

    def contents(self, *kinds: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] in kinds]

    def text(self, name: str = "stdout") -> str:
        """Everything the cell's stream said."""
        return "".join(c["text"] for c in self.contents("stream") if c["name"] == name)

    @property
    def status(self) -> str:
        assert self.reply is not None, "no execute_reply"
        return self.reply["content"]["status"]

    @property
    def error(self) -> str:
        """The traceback as read, without colours; empty if there was no error."""
        lines = [line for c in self.contents("error") for line in c["traceback"]]
        return _COLOURS.sub("", "\n".join(lines))

    @property
    def displays(self) -> list[dict[str, Any]]:
        """Mime bundles that stand below the cell, in order."""
        return [content["data"] for kind, content in self._below() if kind in _DISPLAYS]

    @property
    def shown(self) -> str:
        """All plain text a reader sees below the cell, without colours."""
        return "".join(part + "\n" * (kind != "stream") for kind, part in self._parts())

    @property
    def parts(self) -> list[str]:
        """The same, each text, display and error by itself; what is empty is left out."""
        return [part for _, part in self._parts() if part]

    def _parts(self) -> Iterator[tuple[str, str]]:
        for kind, content in self._below():
            if kind == "stream":
                part = content["text"]
            elif kind in _DISPLAYS:
                part = content["data"].get("text/plain", "")
            else:
                part = "\n".join(content["traceback"])
            yield kind, _COLOURS.sub("", part)

    def _below(self) -> Iterable[tuple[str, dict[str, Any]]]:
        # what has not been cleared, in order, displays as they are by now
        below: dict[str, tuple[str, dict[str, Any]]] = {}
        waits = False  # until the next, to clear
        for number, message in enumerate(self.messages):
            kind, content = message["msg_type"], message["content"]
            name = content.get("transient", {}).get("display_id", str(number))
            if kind == "update_display_data" and name in below:
                below[name] = (below[name][0], content)
            elif kind == "clear_output":
                waits = content["wait"]
                below = below if waits else {}
            elif kind in ("stream", "error", *_DISPLAYS):
                below = {} if waits else below
                waits = False
                below[name] = (kind, content)
        return below.values()


def hosts(manager: Any) -> set[int]:
    """The agents and zygotes of a kernel."""
    found = descendants(manager.provisioner.pid)
    return {pid for pid in found if "monarch_nb.host" in describe_process(pid)}


def wait_for_hosts(manager: Any, ahead: int = 2) -> None:
    """A Monarch kernel starts them ahead of its first mesh; the leak check counts what it finds.
    Where a kept mesh waits for a kernel it starts none."""
    if not all(each.is_driven() for each in kept_record.all_records()):
        return
    eventually(lambda: len(hosts(manager)) >= ahead, what="agent and zygote, started ahead")


_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


def _reserve() -> socket.socket:
    # a port that nobody is given by chance before the kernel listens there, or while it restarts;
    # ZeroMQ listens with this option too, and this socket never does
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", 0))
    return found


class KernelClient:
    """`with KernelClient("monarch") as k: k.run("1+1")`."""

    def __init__(self, name: str, *, ahead: int = 2, **manager: Any) -> None:
        self._ahead = ahead  # how many of agent and zygote live on until the first mesh
        self._reserved = {} if "transport" in manager else {port: _reserve() for port in _PORTS}
        ports = {name: each.getsockname()[1] for name, each in self._reserved.items()}
        self.manager = KernelManager(kernel_name=name, cache_ports=False, **ports, **manager)
        self.cells: dict[str, Cell] = {}
        self.others: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.manager.start_kernel()
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self) -> None:
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        if self.manager.kernel_name == "monarch":
            wait_for_hosts(self.manager, self._ahead)

    def hosts(self) -> set[int]:
        """The agents and zygotes of this kernel."""
        return hosts(self.manager)

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.manager.context.destroy()
        for each in self._reserved.values():
            each.close()

    def start(self, code: str, metadata: dict[str, Any] | None = None, **options: Any) -> Cell:
        """Send a cell, with what a page says beside it, and return at once."""
        if metadata is None:
            msg_id = self.client.execute(code, **options)
        else:
            message = self.client.session.msg("execute_request", {"code": code}, metadata=metadata)
            self.client.shell_channel.send(message)
            msg_id = message["header"]["msg_id"]
        cell = self.cells[msg_id] = Cell(msg_id)
        return cell

    def run(self, code: str, timeout_s: float = 30.0, **options: Any) -> Cell:
        """Send a cell and wait until it is idle and replied."""
        return self.finish(self.start(code, **options), timeout_s)

    def ok(self, code: str, **options: Any) -> Cell:
        """Run a cell that must succeed."""
        cell = self.run(code, **options)
        assert cell.status == "ok", cell.shown
        return cell

    def finish(self, cell: Cell, timeout_s: float = 30.0) -> Cell:
        """Wait for the end of a cell."""
        return self.until(lambda: cell if self.is_done(cell) else None, timeout_s)

    def until(self, predicate: Any, timeout_s: float = 30.0) -> Any:
        """Receive messages until the predicate holds; return what it returned."""
        deadline = time.monotonic() + timeout_s
        while not (found := predicate()):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {timeout_s} s; seen: {self._seen()}"
            self._receive(min(left, 0.05))
        return found

    def settle(self, quiet_s: float = 0.3) -> None:
        """Receive until nothing has come for a while: to show that something does *not* come."""
        while self._receive(quiet_s):
            continue

    def control(self, kind: str, content: dict[str, Any]) -> str:
        """Send a control message; its reply is not waited for."""
        message = self.client.session.msg(kind, content)
        self.client.control_channel.send(message)
        return message["header"]["msg_id"]

    def has_come(self, kind: str, parent: str, state: str | None = None) -> bool:
        """Whether such a message has come as the answer to `parent`."""
        return any(
            message["msg_type"] == kind
            and message["parent_header"].get("msg_id") == parent
            and state in (None, message["content"].get("execution_state"))
            for message in self.others
        )

    def asked(self, within_s: float = 10.0, of: Cell | None = None) -> str:
        """The prompt of the next input request, of this cell if one is given."""
        while True:
            asked = self.client.get_stdin_msg(timeout=within_s)
            if of is None or asked["parent_header"]["msg_id"] == of.msg_id:
                return asked["content"]["prompt"]

    def answer(self, line: str) -> None:
        """Type a line at the prompt."""
        self.client.input(line)

    def is_asked(self) -> bool:
        """Whether an input request waits."""
        return self.client.stdin_channel.msg_ready()

    def interrupt(self) -> None:
        """The stop button."""
        self.manager.interrupt_kernel()

    def stop_s(self, cell: Cell) -> float:
        """Press it; how long the prompt took."""
        pressed = time.monotonic()
        self.interrupt()
        self.finish(cell)
        return cell.finished_s - pressed

    def is_done(self, cell: Cell) -> bool:
        idle = any(c["execution_state"] == "idle" for c in cell.contents("status"))
        return idle and cell.reply is not None

    def _seen(self) -> dict[str, str]:
        return {cell.msg_id[-8:]: cell.shown[-2000:] for cell in list(self.cells.values())[-3:]}

    def _receive(self, timeout_s: float) -> bool:
        """Take what has come on any channel; False when nothing came in time.

        An answer is seen when it comes, not when the next output does: tests measure how long it
        took.
        """
        client = self.client
        channels = (client.iopub_channel, client.shell_channel, client.control_channel)
        poller = zmq.Poller()
        for channel in channels:
            poller.register(channel.socket, zmq.POLLIN)
        poller.poll(timeout_s * 1e3)
        taken = [self._take(channel) for channel in channels]
        return any(taken)

    def _take(self, channel: Any) -> bool:
        """The next message of a channel, if one is there."""
        if not channel.msg_ready():
            return False
        message = channel.get_msg(timeout=1)
        cell = self.cells.get(message["parent_header"].get("msg_id", ""))
        if cell and message["msg_type"] == "execute_reply":
            cell.reply = message
            cell.finished_s = time.monotonic()
        elif cell and channel is self.client.iopub_channel:
            cell.messages.append(message)
        else:
            self.others.append(message)
        return True
