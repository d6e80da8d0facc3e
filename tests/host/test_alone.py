"""The note that an agent leaves of ranks that nobody drives."""

import os

from monarch_nb.core.wire.messages.keeping import Alone, Doing
from monarch_nb.host.status import alone

NOW_NS = 100_000_000_000


def row(process: int, state: str, since_s: float, what: str = "") -> list:
    return [process, state, int(since_s * 1e9), what, 0, 0, 0, 0, 0]


def test_ranks_that_do_the_same_are_one_entry_with_the_longest_time():
    rows = [
        row(1, "busy", 40, "cell In[4]"),
        row(2, "busy", 70, "cell In[4]"),
        row(3, "idle", 99),
        row(4, "busy", 90, "cell In[4]"),
        row(5, "starting", 0),
    ]
    assert alone.doing(rows, {4}, 2, NOW_NS) == [
        Doing(2, "busy", "cell In[4]", 60.0),
        Doing(1, "idle", "", 1.0),
        Doing(1, "silent", "cell In[4]", 10.0),
        Doing(1, "starting", "", 0.0),
        Doing(2, "ended", "", 0.0),
    ]


def test_what_is_read_says_how_old_it_is(tmp_path):
    assert alone.read(tmp_path) is None
    told = Alone([Doing(1, "idle", "", 1.5)], 2.0, 3.0)
    alone.write(tmp_path, told)
    found = alone.read(tmp_path)
    assert found._replace(age_s=0.0) == told
    [note] = tmp_path.iterdir()
    os.utime(note, (note.stat().st_atime, note.stat().st_mtime - 60))
    assert 60 <= alone.read(tmp_path).age_s < 90
    note.write_text("{")
    assert alone.read(tmp_path) is None
