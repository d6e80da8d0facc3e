"""The program around the kernel: ipykernel's, with our kernel class and streams.

ipykernel flushes stdout and stderr three times for every cell, and each flush waits until the IOPub
thread has been there and back, also when there is nothing to flush: 2 of the 4 ms of an empty cell.

Python looks for modules in the notebook's folder after the standard library and before what is
installed, as in every ipykernel, but not for a module that the kernel itself needs: to open a
notebook beside files of somebody else's runs none of them.
"""

import contextlib
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from ipykernel.iostream import OutStream
from ipykernel.kernelapp import IPKernelApp
from traitlets import DottedObjectName, Type

from monarch_kernel.kernel import MonarchKernel
from monarch_kernel.sending import KeepingSession

_OutStream: Any = OutStream  # their types are incomplete
_IPKernelApp: Any = IPKernelApp


LIBRARIES: Final = {"site-packages", "dist-packages"}
BEFORE_A_CELL: Final = ("stack_data", "jedi", "fastjsonschema")
"""What is imported when it is first used, though no cell has run: for an error, a completion, a
page. It must not be found in a folder that somebody else has filled."""


def _is_not_advice(record: logging.LogRecord) -> bool:
    return "TCP without encryption" not in record.getMessage()


class PromptOutStream(_OutStream):  # type: ignore[misc]  # untyped base
    """An OutStream whose `flush` waits for text only."""

    def flush(self) -> None:
        """Wait until what was written has been sent. Without text there is no order to keep."""
        if self._buffers or self.echo is not None:
            super().flush()


class MonarchKernelApp(_IPKernelApp):  # type: ignore[misc]  # untyped base
    """Reads the connection file, opens the sockets and runs `MonarchKernel`."""

    name = "monarch-kernel"
    kernel_class = Type(MonarchKernel, klass="ipykernel.kernelbase.Kernel").tag(config=True)
    outstream_class = DottedObjectName("monarch_kernel.app.PromptOutStream", allow_none=True).tag(
        config=True
    )

    def init_sockets(self) -> None:
        """Open them, encrypted or not: who starts the kernel decides that, and cannot be told of it
        by a warning in the terminal of every notebook that is opened."""
        self.log.addFilter(_is_not_advice)
        try:
            super().init_sockets()
        finally:
            self.log.removeFilter(_is_not_advice)

    def _session_default(self) -> KeepingSession:
        return KeepingSession(parent=self)

    def initialize(self, argv: list[str] | None = None) -> None:
        """Make no line of the log that no handler will show: 0.1 ms of every cell."""
        super().initialize(argv)
        self.log.setLevel(self.log_level)

    def init_path(self) -> None:
        """Have imports look in the notebook's folder too, now that the kernel has its own.

        IPython takes the `-P` of the kernelspec for a wish of the user's, so it is done here.
        """
        if "" in sys.path or self.ignore_cwd or os.environ.get("PYTHONSAFEPATH"):
            return
        for name in BEFORE_A_CELL:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
        libraries = (n for n, each in enumerate(sys.path) if Path(each).name in LIBRARIES)
        sys.path.insert(next(libraries, 0), "")
