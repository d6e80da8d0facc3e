"""The program around the kernel: ipykernel's, with our kernel class and streams."""

from typing import Any

from ipykernel.kernelapp import IPKernelApp
from traitlets import DottedObjectName, Type

from monarch_kernel.kernel import MonarchKernel

_IPKernelApp: Any = IPKernelApp  # its types are incomplete


class MonarchKernelApp(_IPKernelApp):  # type: ignore[misc]
    """Reads the connection file, opens the sockets and runs `MonarchKernel`."""

    name = "monarch-kernel"
    kernel_class = Type(MonarchKernel, klass="ipykernel.kernelbase.Kernel").tag(config=True)
    outstream_class = DottedObjectName(
        "monarch_kernel.streams.PromptOutStream", allow_none=True
    ).tag(config=True)

    def initialize(self, argv: list[str] | None = None) -> None:
        """As ipykernel's; a line of the log that no handler will show is not made at all, which is
        0.1 ms of every cell."""
        super().initialize(argv)
        self.log.setLevel(self.log_level)
