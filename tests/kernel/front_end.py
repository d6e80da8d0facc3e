"""JupyterLab's side of a debugging session: its messages in its order, on the control channel."""

import time
from typing import Any

from tests.kernel.client import Cell, KernelClient


class FrontEnd:
    """`on()`, then breakpoints, then cells; what the panels show is asked for by name."""

    def __init__(self, kernel: KernelClient) -> None:
        self.kernel = kernel
        self._seq = 0
        self._seen: set[str] = set()  # message ids of events

    # the protocol

    def send(self, command: str, arguments: dict[str, Any] | None = None) -> str:
        """Ask, and wait for nothing; the id of the message."""
        self._seq += 1
        request = {"type": "request", "seq": self._seq, "command": command}
        return self.kernel.control("debug_request", {**request, "arguments": arguments or {}})

    def answer(self, request: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """The answer to what was sent."""
        return self.kernel.until(lambda: self._answered(request), timeout_s)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        reply = self.answer(self.send(command, arguments))
        assert reply["request_seq"] == self._seq
        assert reply["command"] == command
        return reply

    def ok(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The body of an answer that must be good."""
        reply = self.ask(command, **arguments)
        assert reply["success"], reply
        return reply.get("body", {})

    def event(self, name: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """The body of the next event of this name; those before it are forgotten."""
        return self.kernel.until(lambda: self._event(name), timeout_s)

    # what a person does

    def on(self) -> dict[str, Any]:
        """The bug button, on; what the debugger says it is capable of."""
        self.ok("debugInfo")
        capabilities = self.ok("initialize", **_WHO)
        self.ok("attach")
        assert self.ok("debugInfo")["isStarted"]
        self.ok("setExceptionBreakpoints", filters=[])
        return capabilities

    def off(self) -> None:
        """The bug button, off."""
        self.ok("disconnect", restart=False, terminateDebuggee=False)

    def gutter(self, cell: str, *lines: int | dict[str, Any]) -> list[dict[str, Any]]:
        """Breakpoints at these lines of a cell, no others."""
        path = self.ok("dumpCell", code=cell)["sourcePath"]
        return self.breakpoints(path, *lines)

    def breakpoints(self, path: str, *lines: int | dict[str, Any]) -> list[dict[str, Any]]:
        """Breakpoints in a file."""
        wanted = [line if isinstance(line, dict) else {"line": line} for line in lines]
        self.ok("debugInfo")
        return self.ok("setBreakpoints", breakpoints=wanted, source={"path": path},
                       sourceModified=False)["breakpoints"]  # fmt: skip

    def run(self, cell: str) -> Cell:
        """Start a cell; events of what ran before are forgotten."""
        self._seen.update(each["header"]["msg_id"] for each in self._events())
        return self.kernel.start(cell)

    def stop_at(self, cell: str, line: int) -> tuple[Cell, dict[str, Any]]:
        """Run a cell to a breakpoint in it; the cell and what has stopped."""
        self.gutter(cell, line)
        return self.run(cell), self.event("stopped")

    def pause(self) -> dict[str, Any]:
        """The pause button; what has stopped."""
        self.ok("pause", threadId=1)
        return self.event("stopped")

    def step(self, *steps: str) -> list[tuple[str, int]]:
        """Leave each stop by one of these; the places at which it has stopped."""
        places = []
        for step in steps:
            stopped = self.event("stopped")
            places.append(self.place(stopped))
            self.ok(step, threadId=stopped["threadId"])
        return places

    def frames(self, stopped: dict[str, Any]) -> list[dict[str, Any]]:
        """The call stack of what has stopped."""
        return self.ok("stackTrace", threadId=stopped["threadId"])["stackFrames"]

    def place(self, stopped: dict[str, Any]) -> tuple[str, int]:
        """The function and the line at which it has stopped."""
        frame = self.frames(stopped)[0]
        return frame["name"].rpartition("] ")[2], frame["line"]

    def local_names(self, stopped: dict[str, Any]) -> dict[str, str]:
        """What the variables panel shows of the innermost frame: names and values."""
        scopes = self.ok("scopes", frameId=self.frames(stopped)[0]["id"])["scopes"]
        reference = scopes[0]["variablesReference"]
        found = self.ok("variables", variablesReference=reference)["variables"]
        return {one["name"]: one["value"] for one in found}

    def evaluate(self, stopped: dict[str, Any], expression: str) -> str:
        """What an expression is in the innermost frame."""
        frame = self.frames(stopped)[0]["id"]
        return self.ok("evaluate", expression=expression, frameId=frame, context="repl")["result"]

    def resume(self) -> None:
        """The play button: JupyterLab has forgotten the thread by then."""
        self.ok("continue", threadId=1)

    def rank_of(self, stopped: dict[str, Any]) -> str:
        """The name of a stopped thread."""
        threads = {each["id"]: each["name"] for each in self.ok("threads")["threads"]}
        return threads[stopped["threadId"]]

    def _answered(self, request: str) -> dict[str, Any] | None:
        for message in self.kernel.others:
            if message["msg_type"] == "debug_reply" and _parent(message) == request:
                return message["content"]
        return None

    def _events(self) -> list[dict[str, Any]]:
        cells = [message for cell in self.kernel.cells.values() for message in cell.messages]
        found = [
            each for each in [*cells, *self.kernel.others] if each["msg_type"] == "debug_event"
        ]
        return [each for each in found if each["header"]["msg_id"] not in self._seen]

    def _event(self, name: str) -> dict[str, Any] | None:
        for message in sorted(self._events(), key=lambda each: each["header"]["date"]):
            self._seen.add(message["header"]["msg_id"])
            if message["content"]["event"] == name:
                return message["content"].get("body") or {"event": name}
        return None


def took_s(since_s: float) -> float:
    """Seconds since then."""
    return time.monotonic() - since_s


def _parent(message: dict[str, Any]) -> str:
    return message["parent_header"].get("msg_id", "")


_WHO = {
    "clientID": "jupyterlab",
    "clientName": "JupyterLab",
    "adapterID": "monarch",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsVariableType": True,
    "supportsVariablePaging": True,
    "supportsRunInTerminalRequest": True,
    "locale": "en",
}
