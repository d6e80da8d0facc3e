"""Meshes whose ranks meet in process groups."""

from __future__ import annotations

from tests.control.conftest import mesh

__all__ = ["mesh"]
