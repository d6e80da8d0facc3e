"""What is said of kept meshes, to be typed as it stands."""

import os

from monarch_nb.control.keeping.kept_record import KeptMesh, KeptRecord
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
