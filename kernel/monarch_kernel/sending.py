"""What the kernel sends goes through one session, which keeps what stands below cells."""

from typing import Any

from jupyter_client.session import Session

from monarch_nb.notebook.output.kept import KINDS, KeptOutputs

_Session: Any = Session  # its types are incomplete


class KeepingSession(_Session):  # type: ignore[misc]  # untyped base
    """A Session that keeps the outputs of cells, for pages that are loaded while these run."""

    def __init__(self, **options: object) -> None:
        self.kept = KeptOutputs()
        super().__init__(**options)

    def serialize(self, msg: Any, ident: Any = None) -> Any:
        """Keep the message, which is about to be sent.

        A page that asks between the two is told of it and gets it; it knows it by its id.
        """
        kind, parent = msg["header"]["msg_type"], msg.get("parent_header") or {}
        if kind in KINDS:
            self.kept.take(kind, msg["content"], msg["header"]["msg_id"], parent.get("msg_id", ""))
        return super().serialize(msg, ident)
