"""The mesh view's comms: `monarch_nb.mesh`, which a browser opens, and `monarch_nb.announce`.

Rules of the file: handlers run on whatever thread the kernel reads comms on (the main thread, a
subshell's, or beside an async cell), so they only pass on. Messages are sent without a parent, so
that they belong to no cell; and not by `Comm.send` of ipykernel, which takes the cell that runs
last for the parent and has the browser's next message wait behind that cell. The kernel's own
`Comm` for an opened comm is replaced for the same reason: its handler has IPython's `post_execute`
run, which shows half-drawn figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from comm.base_comm import BaseComm

from monarch_nb.notebook.view.answers.hub import Hub
from monarch_nb.notebook.view.browser.protocol import VERSION

MESH: Final = "monarch_nb.mesh"
ANNOUNCE: Final = "monarch_nb.announce"
MONARCH: Final = "monarch"
"""What our own kernel calls itself; its kernelspec says to pages that it is one."""


def serve_browsers(shell: object, hub: Hub) -> Callable[[], None]:
    """Let browsers open comms, and tell those of a plain kernel that they can; return the undo."""
    kernel = getattr(shell, "kernel", None)
    manager = getattr(kernel, "comm_manager", None)
    if manager is None:
        return lambda: None
    manager.register_target(MESH, lambda comm, _: MeshComm(kernel, comm, hub))
    if getattr(kernel, "implementation", "") != MONARCH:
        announcement = Announcement(kernel)

    def undo() -> None:
        manager.targets.pop(MESH, None)
        for comm in list(manager.comms.values()):
            if isinstance(comm, MeshComm):
                comm.close()
        if getattr(kernel, "implementation", "") != MONARCH:
            announcement.withdraw()

    return undo


class _Comm(BaseComm):
    """A comm whose messages belong to no cell."""

    def __init__(self, kernel: Any, target_name: str, comm_id: str | None, primary: bool) -> None:
        self._kernel = kernel
        super().__init__(target_name=target_name, comm_id=comm_id, primary=primary)

    def publish_msg(
        self,
        msg_type: str,
        data: object = None,
        metadata: object = None,
        buffers: object = None,  # noqa: ARG002  there are none
        **keys: object,
    ) -> None:
        # Send it, from any thread: ipykernel's thread for that puts it on the wire
        kernel = self._kernel
        kernel.session.send(
            kernel.iopub_socket,
            msg_type,
            {"data": data or {}, "comm_id": self.comm_id, **keys},
            metadata=metadata or {},
            parent=None,
            ident=self.topic,
        )

    def __del__(self) -> None:
        """Nothing: it was closed, or the kernel ends."""


class MeshComm(_Comm):
    """One browser's connection: a channel of the hub."""

    def __init__(self, kernel: Any, comm: Any, hub: Hub) -> None:
        comm._closed = True  # it is replaced, not closed: its end must not tell the browser
        super().__init__(kernel, MESH, comm.comm_id, primary=False)
        self._channel = hub.open(self.send)
        kernel.comm_manager.comms[self.comm_id] = self

    def handle_msg(self, msg: dict[str, Any]) -> None:
        self._channel.receive(msg["content"].get("data"))

    def handle_close(self, _: object) -> None:
        self._closed = True
        self._channel.close()

    def close(self, *_: object, **__: object) -> None:
        """Close it: the extension is unloaded."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        self._kernel.comm_manager.comms.pop(self.comm_id, None)
        self.publish_msg("comm_close")


class Announcement(_Comm):
    """Tells pages that this kernel has a mesh view; listed in `comm_info` as long as it has.

    A page without our extension closes what it does not know. That is no reason for the next page
    not to find it.
    """

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel, ANNOUNCE, None, primary=False)
        kernel.comm_manager.comms[self.comm_id] = self
        self.publish_msg("comm_open", {"v": VERSION}, target_name=ANNOUNCE, target_module=None)

    def handle_msg(self, _: object) -> None:
        """Do nothing: this comm only sends."""

    def handle_close(self, _: object) -> None:
        self._kernel.comm_manager.comms[self.comm_id] = self
        self._closed = False

    def withdraw(self) -> None:
        """Close it: the extension is unloaded."""
        self._kernel.comm_manager.comms.pop(self.comm_id, None)
        self.publish_msg("comm_close")
