"""The classes of the JupyterLab that `monarch-nb attach` starts: it opens a run's notebook on the
kernel that runs it.

Rules: the server finds the kernel by the connection file in the folder of the run, and does not
own it: when the server ends the run goes on. While the run goes on only the run writes its
notebook, so a page has it read only; JupyterLab does not save such a file by itself.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager
from traitlets import Unicode

from monarch_nb.control.batch import run_record

_AsyncLargeFileManager: Any = AsyncLargeFileManager  # their types are incomplete
_AsyncMappingKernelManager: Any = AsyncMappingKernelManager
_SessionManager: Any = SessionManager
_Connection: Any = ZMQChannelsWebsocketConnection

_ANSWER_S: Final = 10.0


class RunContents(_AsyncLargeFileManager):  # type: ignore[misc]  # untyped base
    """Files; the notebook of the run is read only while that goes on."""

    run = Unicode(help="Name of the run.").tag(config=True)

    def is_writable(self, path: str) -> bool:
        """Tell whether a page may save a file."""
        found = run_record.find(self.run)
        is_its = found is not None and Path(self._get_os_path(path)) == Path(found.output)
        if found is not None and is_its and found.is_alive():
            return False
        return bool(super().is_writable(path))


class RunKernels(_AsyncMappingKernelManager):  # type: ignore[misc]  # untyped base
    """Kernels; of the run's, which is not this server's process, the stop button works too."""

    def of_run(self) -> str | None:
        """Return the id of the run's kernel; None where it has ended."""
        self.list_kernel_ids()  # looks which connection files there are
        return next(iter(self.kernel_id_to_connection_file), None)

    async def interrupt_kernel(self, kernel_id: str) -> None:
        """Send the message that the stop button sends."""
        if kernel_id != self.of_run():
            await super().interrupt_kernel(kernel_id)
            return
        client = self.get_kernel(kernel_id).client()
        client.start_channels(shell=False, iopub=False, stdin=False, hb=False)
        try:
            client.control_channel.send(client.session.msg("interrupt_request", {}))
            await client.control_channel.get_msg(timeout=_ANSWER_S)
        finally:
            client.stop_channels()


class RunConnection(_Connection):  # type: ignore[misc]  # untyped base
    """A page's connection to a kernel; to the run's also while a cell runs."""

    def request_kernel_info(self) -> asyncio.Future[dict[str, Any]]:
        """Ask for the version of its protocol; not the run's kernel, which would answer when its
        cell has ended. It is of this release, or of another that speaks Jupyter's 5."""
        if self.kernel_manager.owns_kernel:
            asked: asyncio.Future[dict[str, Any]] = super().request_kernel_info()
            return asked
        known = asyncio.get_running_loop().create_future()
        known.set_result({})
        return known


class RunSessions(_SessionManager):  # type: ignore[misc]  # untyped base
    """Sessions; the one of the run's notebook is on the run's kernel."""

    run = Unicode(help="Name of the run.").tag(config=True)

    async def create_session(self, path: str | None = None, **of_it: Any) -> dict[str, Any]:
        """Create a session for a page that has opened a file. JupyterLab says its name only: the
        path is a word of its own, until it renames the session."""
        found = run_record.find(self.run)
        if found is not None and of_it.get("name") == Path(found.output).name:
            of_it["kernel_id"] = self.kernel_manager.of_run() or of_it.get("kernel_id")
        session: dict[str, Any] = await super().create_session(path, **of_it)
        return session
