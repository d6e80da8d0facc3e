"""What ends processes hits those that are meant."""

import subprocess
import time

from monarch_nb.host.guard import end_when_over, started_at


def test_a_process_that_has_the_number_of_one_that_has_gone_is_left_alone():
    with subprocess.Popen(["sleep", "60"]) as other:
        started = started_at(other.pid)
        assert started is not None
        began = time.monotonic()
        end_when_over(other.pid, started - 1, limit_s=5.0)
        assert time.monotonic() - began < 1.0, "nobody is waited for"
        assert other.poll() is None
        end_when_over(other.pid, started, limit_s=0.0)
        assert other.wait(5) == -15
