"""The same as for actors."""

from tests.actors.conftest import failures, other_python, program

__all__ = ["failures", "other_python", "program"]
