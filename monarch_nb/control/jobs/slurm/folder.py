"""The folder of one job, which its hosts share with this program: the ticket, and what they say."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Final

from monarch_nb.net.hosts.joining import Ticket
from monarch_nb.net.keys import key_folder
from monarch_nb.net.private import make_private, write_new

_TAIL_BYTES: Final = 1 << 18


class JobFolder:
    """`$MONARCH_NB_HOME/jobs/NAME`, of mode 0700. Nothing is made before `write_ticket`.

    Args:
        name: begins its name.
        log_dir: where the output goes; None: into the folder.
        token: of a folder that is there; None: it is a new one.
    """

    def __init__(self, name: str, log_dir: str | None, token: str | None = None) -> None:
        token = token or f"{name.replace('/', '-')}-{uuid.uuid4().hex[:8]}"
        self.token = token
        self._path = (key_folder() / "jobs" / token).absolute()
        self.ticket_file = self._path / "ticket"
        own = self._path / "output"
        self._keeps_output = log_dir is not None
        self.output_file = own if log_dir is None else Path(log_dir, f"{token}.out").absolute()

    def write_ticket(self, ticket: Ticket) -> None:
        """Raises `AuthError` where another user could get at it."""
        make_private(self._path)
        self.output_file.parent.mkdir(parents=True, exist_ok=True)
        write_new(self.ticket_file, ticket.to_line().decode())

    def remove_ticket(self) -> None:
        """Remove the ticket, and the folder where nothing else is in it. Harmless when repeated."""
        with contextlib.suppress(OSError):
            self.ticket_file.unlink(missing_ok=True)
            self._path.rmdir()

    def remove_output(self) -> None:
        """Remove what was written, unless it was to go to a `log_dir`; then the folder."""
        if not self._keeps_output:
            with contextlib.suppress(OSError):
                self.output_file.unlink(missing_ok=True)
        self.remove_ticket()

    def output(self) -> str:
        """Return the end of what Slurm and the hosts have written; "" for nothing."""
        with contextlib.suppress(OSError), self.output_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def where_output(self) -> str:
        """Say where all of it is; "" where there is none."""
        return f"All of it: {self.output_file}" if self.output_file.exists() else ""
