"""The program around the kernel: ipykernel's, with our kernel class and streams."""

from ipykernel.kernelapp import IPKernelApp
from traitlets import DottedObjectName, Type

from monarch_kernel.kernel import MonarchKernel


class MonarchKernelApp(IPKernelApp):
    """Reads the connection file, opens the sockets and runs `MonarchKernel`."""

    name = "monarch-kernel"
    kernel_class = Type(MonarchKernel, klass="ipykernel.kernelbase.Kernel").tag(config=True)
    outstream_class = DottedObjectName(
        "monarch_kernel.streams.PromptOutStream", allow_none=True
    ).tag(config=True)
