"""Meshes whose ranks meet in process groups."""

from tests.control.conftest import mesh

__all__ = ["mesh"]
