"""The same as for actors."""

from tests.actors.conftest import failures, other_python, program, pyzmq_keeps_a_thread

__all__ = ["failures", "other_python", "program", "pyzmq_keeps_a_thread"]
