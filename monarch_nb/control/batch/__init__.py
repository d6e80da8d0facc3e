"""Notebooks that run without a page: `monarch-nb run | runs | follow | attach | stop`."""

import sys
from typing import Any

# jsonschema, which checks notebooks, loads what checks addresses (IRIs) where it is installed, as
# with JupyterLab: that takes 2 s of a processor, each time, and no notebook has one to check
_modules: dict[str, Any] = sys.modules
_modules.setdefault("rfc3987_syntax", None)
