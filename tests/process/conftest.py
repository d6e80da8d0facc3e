"""The meshes and programs of the tests of actors."""

from __future__ import annotations

from tests.actors.conftest import (
    failures,
    other_python,
    procs,
    program,
    pyzmq_keeps_a_thread,
    spawn,
)

__all__ = ["failures", "other_python", "procs", "program", "pyzmq_keeps_a_thread", "spawn"]
