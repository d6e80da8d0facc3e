"""The kernel of the checkout."""

from __future__ import annotations

from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec"]
