"""What is done when nobody refers to an object any more, by a thread of its own."""

import threading

from monarch_nb.meshes.garbage import Garbage
from tests.support import eventually


class Thing:
    """Anything that can be referred to."""


def test_it_is_done_in_another_thread_also_after_one_that_has_failed(caplog):
    garbage, threads = Garbage(), []
    first, second = Thing(), Thing()
    kept = [
        garbage.watch(first, lambda: 1 / 0),
        garbage.watch(second, lambda: threads.append(threading.current_thread().name)),
    ]
    del first
    eventually(lambda: "could not be stopped" in caplog.text)
    assert threads == []
    del second
    eventually(lambda: threads == ["monarch-garbage"])
    assert [each() for each in kept] == [None, None]
    garbage.close()
