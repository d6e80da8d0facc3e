"""What runs in a machine: `python -m tests.clusters.offer ADDRESS` offers it as a host there.

Without an address it takes the one that the machine's own name has, as many scripts do.
"""

import socket
import sys

from monarch_nb import run_worker_loop_forever

PORT = 26600


def by_own_name() -> str:
    """Return the address under which this machine knows itself."""
    return f"tcp://{socket.gethostbyname(socket.gethostname())}:{PORT}"


if __name__ == "__main__":
    run_worker_loop_forever(address=sys.argv[1] if len(sys.argv) > 1 else by_own_name())
