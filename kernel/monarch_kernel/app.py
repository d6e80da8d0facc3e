"""The program around the kernel: ipykernel's, with our kernel class."""

from ipykernel.kernelapp import IPKernelApp
from traitlets import Type

from monarch_kernel.kernel import MonarchKernel


class MonarchKernelApp(IPKernelApp):
    """Reads the connection file, opens the sockets and runs `MonarchKernel`."""

    name = "monarch-kernel"
    kernel_class = Type(MonarchKernel, klass="ipykernel.kernelbase.Kernel").tag(config=True)
