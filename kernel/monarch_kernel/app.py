"""The program around the kernel: ipykernel's, with our kernel class and streams.

ipykernel flushes stdout and stderr three times for every cell, and each flush waits until the IOPub
thread has been there and back, also when there is nothing to flush: 2 of the 4 ms of an empty cell.
"""

from typing import Any

from ipykernel.iostream import OutStream
from ipykernel.kernelapp import IPKernelApp
from traitlets import DottedObjectName, Type

from monarch_kernel.kernel import MonarchKernel

_OutStream: Any = OutStream  # their types are incomplete
_IPKernelApp: Any = IPKernelApp


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

    def initialize(self, argv: list[str] | None = None) -> None:
        """Make no line of the log that no handler will show: 0.1 ms of every cell."""
        super().initialize(argv)
        self.log.setLevel(self.log_level)
