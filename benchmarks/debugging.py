"""The visual debugger as JupyterLab meets it: its messages on a kernel's control channel.

A stop counts until the front end has what it draws: the event, the call stack, the variables.
"""

from typing import Any

from jupyter_client.blocking import BlockingKernelClient

from benchmarks import cells
from benchmarks.measures import Figures, Scale
from benchmarks.timing import median, now, time_of

STOPS = 10
RANK = 2
SOON_S = 20.0
CELL = """%%mesh
def work(x):
    y = x + 1
    z = y * 2
    return z
work(20)
"""
LINE = 3


class FrontEnd:
    """Asks one thing after the other, as JupyterLab does."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self._seq = 0

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The body of the answer."""
        self._seq += 1
        content = {"type": "request", "seq": self._seq, "command": command, "arguments": arguments}
        message = self._client.session.msg("debug_request", content)
        self._client.control_channel.send(message)
        sent, end = message["header"]["msg_id"], now() + SOON_S
        while now() < end:
            reply = self._client.get_control_msg(timeout=SOON_S)
            if reply["parent_header"].get("msg_id") == sent:
                if not reply["content"].get("success"):
                    raise RuntimeError(f"{command}: {reply['content'].get('message')}")
                return dict(reply["content"].get("body") or {})
        raise TimeoutError(command)

    def on(self) -> None:
        """The bug button."""
        self.ask("debugInfo")
        self.ask("initialize", clientID="benchmark", adapterID="", pathFormat="path")
        self.ask("attach")
        self.ask("debugInfo")

    def stops(self) -> int:
        """Wait for a stop, and for what is drawn of it; the thread."""
        end = now() + SOON_S
        while now() < end:
            message = self._client.get_iopub_msg(timeout=SOON_S)
            content = message["content"]
            if message["msg_type"] == "debug_event" and content["event"] == "stopped":
                thread = int(content["body"]["threadId"])
                frame = self.ask("stackTrace", threadId=thread)["stackFrames"][0]["id"]
                scope = self.ask("scopes", frameId=frame)["scopes"][0]["variablesReference"]
                self.ask("variables", variablesReference=scope)
                return thread
        raise TimeoutError("no stop")


def debugger(notebook: cells.Notebook, _scale: Scale) -> Figures:
    """Attach, stop and step, on one rank of a mesh; and attach to all of its ranks."""
    with cells.kernel(notebook) as client:
        for code in (*notebook.setup, f"%mesh debugger {RANK}"):
            cells.run(client, code)
        page = FrontEnd(client)
        first = time_of(page.on)
        path = page.ask("dumpCell", code=CELL)["sourcePath"]
        page.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": LINE}])
        stops, steps = zip(*(_stop_and_step(client, page) for _ in range(STOPS)), strict=True)
        page.ask("disconnect", restart=False, terminateDebuggee=False)
        cells.run(client, "%mesh debugger all")
        every = time_of(page.on)
        page.ask("disconnect", restart=False, terminateDebuggee=False)
        for code in notebook.teardown:
            cells.run(client, code)
    return {"attach": first, "attach_all": every, "stop": median(stops), "step": median(steps)}


def _stop_and_step(client: BlockingKernelClient, page: FrontEnd) -> tuple[float, float]:
    start = now()
    sent = client.execute(CELL)
    thread = page.stops()
    stopped = now()
    page.ask("next", threadId=thread)
    page.stops()
    stepped = now()
    page.ask("continue", threadId=1)
    cells.reply_to(client, sent, now() + SOON_S)
    return stopped - start, stepped - stopped
