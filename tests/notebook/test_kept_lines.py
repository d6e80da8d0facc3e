"""What is said of kept meshes, to be typed as it stands."""

import os

from monarch_nb.control.keeping.kept_record import KeptMesh, KeptRecord
from monarch_nb.control.keeping.returning import Left
from monarch_nb.core.wire.messages.keeping import Alone, Doing
from monarch_nb.host.guard import started_at
from monarch_nb.notebook import kept_meshes


def record(name, controller_pid=0):
    return KeptRecord(
        host="here",
        run_dir="/nowhere",
        controller=1,
        controller_pid=controller_pid,
        controller_started=started_at(controller_pid) or 0,
        agent=2,
        agent_pid=os.getpid(),
        agent_started=started_at(os.getpid()) or 0,
        key="k",
        for_s=3600.0,
        config={},
        notebook="",
        meshes=[KeptMesh(name, {"gpus": 4})],
    )


def test_a_name_with_spaces_is_quoted_where_it_is_to_be_typed():
    assert kept_meshes.offers([record("my mesh")]) == [
        "my mesh with 4 ranks is still there: %mesh attach 'my mesh'"
    ]
    assert kept_meshes.words(record("my mesh")).endswith("%mesh attach 'my mesh'")
    assert kept_meshes.words(record("mesh0")).endswith("%mesh attach mesh0")


def test_what_ranks_of_all_hosts_do_is_one_line():
    first = Alone([Doing(2, "busy", "cell In[4]", 60.0)], 130.0, 3600.0)
    second = Alone(
        [Doing(1, "busy", "cell In[4]", 70.0), Doing(1, "ended", "", 0.0)], 131.0, 3599.0
    )
    assert kept_meshes.doing(Left([first, second], [])) == (
        "3 ranks busy (cell In[4]) for 70 s, 1 rank ended; alone for 2 min, ends in 60 min"
    )
    assert kept_meshes.doing(Left([first], ["node2"])) == (
        "2 ranks busy (cell In[4]) for 60 s, node2 cannot be heard; alone for 2 min, ends in 60 min"
    )
    assert kept_meshes.doing(Left([first._replace(age_s=40.0)], [])).endswith("; that was 40 s ago")
    assert kept_meshes.doing(Left([], ["node2"])) == "node2 cannot be heard"
    assert kept_meshes.doing(Left([], [])) == "what its ranks do is not known"
