"""What ends processes hits those that are meant."""

import subprocess
import time

from monarch_nb.host.guard import end_when_over, started_at


def test_a_process_that_has_the_number_of_one_that_has_gone_is_left_alone():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["cat"], bufsize=0, **pipes) as other:
        started = started_at(other.pid)
        assert started is not None
        began = time.monotonic()
        end_when_over(other.pid, started - 1, limit_s=5.0)
        assert time.monotonic() - began < 1.0, "nobody is waited for"
        other.stdin.write(b"alive")  # a signal that was sent would come first
        assert other.stdout.read(5) == b"alive"
        end_when_over(other.pid, started, limit_s=0.0)
        assert other.wait(5) == -15
