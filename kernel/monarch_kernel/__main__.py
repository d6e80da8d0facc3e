"""Start the kernel. Jupyter runs this with the arguments of kernel/spec/kernel.json."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:  # started by hand, without the -P of the kernelspec
        del sys.path[0]

    from monarch_kernel.app import MonarchKernelApp

    MonarchKernelApp.launch_instance()
