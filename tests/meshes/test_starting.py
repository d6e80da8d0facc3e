"""Part A, `spawn_procs`: environment, command, bootstrap and processors of new processes."""

import asyncio
import os
import sys
import threading

import pytest

import monarch_nb
from monarch_nb import ActorError, BootstrapCommand, default_bootstrap_cmd, this_host
from tests.actors.cast import Counter, over

# -------------------------------------------------------------------------------------- environment


pytestmark = pytest.mark.usefixtures("mesh_runtime")


def test_env_sets_and_removes(spawn, monkeypatch):
    monkeypatch.setenv("MNB_OF_CLIENT", "inherited?")
    mesh = spawn({"gpus": 2}, env={"MNB_GIVEN": "yes", "HOME": None})
    assert over(mesh, "env", "MNB_GIVEN", "HOME", "RANK") == [
        ("yes", None, "0"),
        ("yes", None, "1"),
    ]


def test_who_a_rank_is_stands_in_its_main_from_the_start(spawn):
    mesh = spawn({"gpus": 2})
    assert over(mesh, "in_main", "rank") == [0, 1]
    assert over(mesh, "in_main", "world_size") == [2, 2]


def test_bootstrap_command_for_all(spawn):
    command = default_bootstrap_cmd().with_env({"A": "1", "HOME": None, "B": "2"})
    assert isinstance(command, BootstrapCommand)
    assert command.program == sys.executable
    changed = command.with_env({"B": None}).with_env(None)
    assert dict(changed.env) == {"A": "1", "HOME": None, "B": None}
    assert dict(command.env)["B"] == "2"
    assert (
        over(spawn({"gpus": 2}, bootstrap_command=command), "env", "A", "HOME", "B")
        == [("1", None, "2")] * 2
    )


def test_bootstrap_command_by_point(spawn):
    def command(point):
        return default_bootstrap_cmd().with_env({"WHERE": str(point)})

    mesh = spawn({"a": 1, "gpus": 2}, bootstrap_command=command)
    assert over(mesh, "env", "WHERE") == [
        ("{'a': 0/1, 'gpus': 0/2}",),
        ("{'a': 0/1, 'gpus': 1/2}",),
    ]


def test_a_command_that_inherits_nothing(spawn):
    command = BootstrapCommand(env={"ONLY": "this"}, inherit_env=False)
    [found] = over(spawn(bootstrap_command=command), "all_env")
    assert found["ONLY"] == "this"
    assert "PATH" not in found
    assert "HOME" not in found


def test_a_command_that_cannot_be_is_refused_at_once():
    with pytest.raises(ValueError, match="'/no/program': there is no such program"):
        this_host().spawn_procs(bootstrap_command=BootstrapCommand(program="/no/program"))
    with pytest.raises(ValueError, match="'nice': there is no such program"):
        this_host().spawn_procs(
            bootstrap_command=BootstrapCommand("nice", env={"PATH": "/nowhere"})
        )
    with pytest.raises(TypeError, match="BootstrapCommand"):
        this_host().spawn_procs(bootstrap_command=lambda point: "python")


# ---------------------------------------------------------------------------------------- bootstrap


def remember():
    sys.of_bootstrap = (os.getpid(), threading.current_thread() is threading.main_thread())


async def remember_later():
    await asyncio.sleep(0)
    remember()


@pytest.mark.parametrize("bootstrap", [remember, remember_later])
def test_bootstrap_runs_before_anything_else(spawn, bootstrap):
    mesh = spawn({"gpus": 2}, bootstrap=bootstrap)
    assert over(mesh, "seen", "of_bootstrap") == [(pid, True) for pid in over(mesh, "pid")]
    assert mesh.initialized.get() is True


def test_bootstrap_may_be_a_closure(spawn):
    value = ["from the client"]

    def remember_value():
        sys.of_closure = value

    assert over(spawn(bootstrap=remember_value), "seen", "of_closure") == [["from the client"]]


def fail():
    if os.environ["RANK"] == "1":
        raise OSError("no licence")


async def fail_later():
    fail()


@pytest.mark.parametrize("bootstrap", [fail, fail_later])
def test_a_bootstrap_that_raises(spawn, failures, bootstrap):
    mesh = spawn({"gpus": 2}, bootstrap=bootstrap)
    early = mesh.spawn("early", Counter)
    call = early.get.call()
    for future in (mesh.initialized, early.initialized, call):
        with pytest.raises(ActorError, match=r"Actor call setup\.setup failed on rank 1") as caught:
            future.get()
        assert isinstance(caught.value.exception, OSError)
    late = mesh.spawn("late", Counter)
    with pytest.raises(ActorError, match=r"Actor call setup\.setup failed.*\n(.*\n)*.*no licence"):
        late.get.call().get()
    with pytest.raises(ActorError, match=r"Actor call setup\.setup failed"):
        early.slice(gpus=1).get.call_one().get()
    assert early.slice(gpus=0).get.call_one().get() == 0
    assert failures == []


def test_a_bootstrap_that_does_not_pickle():
    with pytest.raises(TypeError, match="cannot be pickled"):
        this_host().spawn_procs(bootstrap=threading.Lock().acquire)


# --------------------------------------------------------------------------------------- processors


def test_proc_bind_chooses_processors(spawn):
    mine = sorted(os.sched_getaffinity(0))
    first, last = mine[0], mine[-1]
    bind = [{"cpus": str(first)}, {"physcpubind": f"{first},{last}-{last}"}]
    found = over(spawn({"gpus": 2}, proc_bind=bind), "processors")
    assert found == [[first], sorted({first, last})]


def test_proc_bind_by_node(spawn):
    bind = [{"cpunodebind": "0", "membind": "0"}]
    [found] = over(spawn(proc_bind=bind), "processors")
    assert set(found) <= os.sched_getaffinity(0)
    assert found


@pytest.mark.parametrize(
    "bind, message",
    [
        ([{"cpus": "0"}], r"proc_bind length \(1\) must equal procs_per_host \(4\)"),
        ([{"cores": "0"}] * 4, r"proc_bind knows .*not \['cores'\]"),
        ([{"cpus": "x"}] * 4, "'x' is no list of numbers"),
        ([{"cpus": "3-1"}] * 4, "'3-1' is no list of numbers"),
        ([{"cpus": ""}] * 4, "'' is no list of numbers"),
    ],
)
def test_proc_bind_is_checked(bind, message):
    with pytest.raises(ValueError, match=message):
        this_host().spawn_procs({"gpus": 4}, proc_bind=bind)


def test_processors_that_are_not_there(spawn, failures):
    mesh = spawn(proc_bind=[{"cpus": "4095"}])
    with pytest.raises(monarch_nb.SupervisionError, match="4095"):
        mesh.initialized.get()
