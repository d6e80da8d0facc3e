"""The client: starts hosts, is the root of supervision, runs cells, keeps the status snapshot."""

from __future__ import annotations

from collections.abc import Callable

from monarch_nb.process.remote_errors import name_files as name_files

when_started: list[Callable[[], object]] = []
"""Called whenever a client has started in this process, so that a notebook listens from its first
moment."""
