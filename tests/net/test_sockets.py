"""The one place that makes sockets, by itself."""

import os
import signal
import threading

import zmq

from monarch_nb.net import wire


def test_a_signal_while_a_context_ends_leaves_nothing(tmp_path):
    """Send the signal while the context waits to deliver a message, to nobody."""
    tmp_path.chmod(0o700)
    came: list[int] = []
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    descriptors = sorted(os.listdir("/proc/self/fd"))
    try:
        context = wire.new_context()
        outbox = wire.connect_outbox(context, tmp_path, 9)
        outbox.send(b"", zmq.NOBLOCK)
        outbox.close(linger=500)
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1))
        timer.start()
        wire.end_context(context)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [signal.SIGUSR1]
    assert sorted(os.listdir("/proc/self/fd")) == descriptors
