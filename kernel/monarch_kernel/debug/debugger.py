"""Start JupyterLab's debugger without harm to the rest of the kernel.

Two faults of ipykernel 7.4 are mended. `Debugger.start` waits in the Control thread until the shell
has run a line of code, so with a busy cell no interrupt could arrive; here a helper thread waits.
And pydevd patches `subprocess` so that a child Python waits for a second debug session, which
JupyterLab never opens: `subProcess=False` must be said before debugpy listens.
"""

import asyncio
from pathlib import Path
from typing import Any

from ipykernel.compiler import get_tmp_directory
from ipykernel.debugger import ROUTING_ID

_LISTEN = "import debugpy; debugpy.configure(subProcess=False); debugpy.listen(({host!r}, {port}))"


async def prepare(debugger: Any) -> None:
    """Make debugpy listen, once, so that `Debugger.start` finds its work done."""
    if debugger.debugpy_initialized:
        return
    host, port = debugger.debugpy_client.get_host_port()
    code = _LISTEN.format(host=host, port=int(port))
    debugger.debugpy_initialized = await asyncio.to_thread(_run_in_shell, debugger, code)


def make_folder() -> None:
    """Where the files of cells are, for debuggers."""
    Path(get_tmp_directory()).mkdir(mode=0o700, parents=True, exist_ok=True)


def _run_in_shell(debugger: Any, code: str) -> bool:
    make_folder()
    socket = debugger.shell_socket
    content = {"code": code, "silent": True}
    debugger.session.send(socket, "execute_request", content, None, socket.getsockopt(ROUTING_ID))
    _, reply = debugger.session.recv(socket, mode=0)
    return bool(reply["content"]["status"] == "ok")
