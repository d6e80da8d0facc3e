"""Start the kernel. Jupyter runs this with the arguments of kernel/spec/kernel.json."""

import sys

if __name__ == "__main__":
    # The folder of the notebook must not shadow the standard library while the kernel starts
    # (as in ipykernel_launcher); IPython puts it back for the user's own imports.
    del sys.path[0]

    from monarch_kernel.app import MonarchKernelApp

    MonarchKernelApp.launch_instance()
