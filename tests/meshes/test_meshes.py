"""Part A, hosts and processes: spawning, names, slices, bootstrap, environment, processors."""

import asyncio
import os
import pickle
import sys

import pytest

import monarch_nb
from monarch_nb import (
    Actor,
    ActorError,
    Extent,
    HostMesh,
    ProcMesh,
    endpoint,
    proc_mesh,
    this_host,
    this_proc,
)
from monarch_nb.meshes.proc_mesh import (
    HostsState,
    register_proc_mesh_spawn_callback,
    unregister_proc_mesh_spawn_callback,
)
from tests.actors.cast import Counter, Process, Witness, over

# ----------------------------------------------------------------------------------------- the host


pytestmark = pytest.mark.usefixtures("mesh_runtime")


def test_this_host():
    host = this_host()
    assert isinstance(host, HostMesh)
    assert (host.sizes, len(host), host.extent) == ({}, 1, Extent([], []))
    assert host == this_host() == pickle.loads(pickle.dumps(host))
    assert hash(host) == hash(this_host())
    assert host != "host"
    assert host.initialized.get() is True


def test_the_interpreter_is_this_one_unless_it_is_another():
    assert this_host().with_python_executable(sys.executable) == this_host()
    other = this_host().with_python_executable("/usr/bin/false")
    assert other != this_host()
    assert other == pickle.loads(pickle.dumps(other))
    assert "with /usr/bin/false" in repr(other)
    assert other.with_python_executable(sys.executable) == this_host()
    with pytest.raises(ValueError, match="'/no/python': there is no such program"):
        this_host().with_python_executable("/no/python").spawn_procs()


def test_no_workspace_on_this_host():
    with pytest.raises(NotImplementedError, match="share its files"):
        asyncio.run(this_host().sync_workspace("somewhere"))
    with pytest.raises(NotImplementedError):
        asyncio.run(this_proc().sync_workspace("somewhere"))


# -------------------------------------------------------------------------------------- spawn_procs


def test_axes_are_those_of_the_hosts_then_those_given(spawn):
    assert spawn().sizes == {}
    assert spawn({"a": 2, "b": 1}).sizes == {"a": 2, "b": 1}
    agents = HostsState([monarch_nb.control.client.client().local_agent()])
    hosts = HostMesh(agents, Extent(["hosts"], [1]).region.as_shape())
    mesh = hosts.spawn_procs({"gpus": 2})
    assert mesh.sizes == {"hosts": 1, "gpus": 2}
    assert over(mesh, "rank") == [{"hosts": 0, "gpus": 0}, {"hosts": 0, "gpus": 1}]
    with pytest.raises(ValueError, match="'hosts' is a host axis already"):
        hosts.spawn_procs({"hosts": 2})
    mesh.stop().get()


def test_each_rank_is_a_process(spawn):
    mesh = spawn({"gpus": 3})
    assert mesh.initialized.get() is True
    pids = over(mesh, "pid")
    assert len(set(pids)) == 3
    assert os.getpid() not in pids


@pytest.mark.parametrize("per_host", [{"gpus": 0}, {"gpus": -1}, {"gpus": "x"}, {"gpus": 1.5}])
def test_sizes_are_whole_numbers(per_host):
    with pytest.raises(ValueError, match="the size of an axis is a whole number"):
        this_host().spawn_procs(per_host)


def test_any_text_is_a_name_and_names_may_repeat(spawn):
    first, second = spawn({"gpus": 1}, name="a/b c \u00fc\n%"), spawn({"gpus": 1}, name="x")
    assert first.name == "a/b c \u00fc\n%"
    actors = [first.spawn(name, Counter) for name in ("same", "same", "", "\u00fc %d {}")]
    assert [each.get.call_one().get() for each in actors] == [0] * 4
    assert spawn({"gpus": 1}, name="x").name == second.name
    assert spawn().name != spawn().name


def test_the_first_sync_actor_has_the_main_thread_of_its_process(spawn):
    mesh = spawn()
    first, second = mesh.spawn("first", Witness), mesh.spawn("second", Witness)
    for witness in (first, second):
        assert witness.look.call_one().get() == ("monarch-actor-driver", False, True)
    first.stop().get()
    third = mesh.spawn("third", Witness)
    assert third.look.call_one().get() == ("monarch-actor-driver", False, True)


def test_repr_tells_name_sizes_and_state(spawn):
    mesh = spawn({"gpus": 2}, name="shown")
    mesh.initialized.get()
    assert repr(mesh) == "<ProcMesh 'shown' {gpus=2} ready>"
    counter = mesh.spawn("counter", Counter)
    assert repr(counter).startswith("ActorMesh(class=tests.actors.cast.Counter")
    assert "shape={gpus=2}" in repr(counter)
    mesh.stop().get()
    assert "stopped" in repr(mesh)
    assert "stopped" in repr(counter)


# ------------------------------------------------------------------------------------------- slices


def test_meshes_of_processes_slice_split_flatten_and_rename(spawn):
    mesh = spawn({"gpus": 4})
    pids = over(mesh, "pid")
    assert over(mesh.slice(gpus=slice(1, 4, 2)), "pid") == pids[1::2]
    grid = mesh.split(gpus=("rows", "columns"), columns=2)
    assert grid.sizes == {"rows": 2, "columns": 2}
    assert over(grid.slice(columns=0), "pid") == [pids[0], pids[2]]
    assert grid.flatten("line").sizes == {"line": 4}
    assert mesh.rename(gpus="workers").sizes == {"workers": 4}
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        grid.slice(columns=0).flatten("line")
    with pytest.raises(TypeError, match="does not have dimension labeled 'zz'"):
        mesh.slice(zz=0)
    with pytest.raises(IndexError, match="index out of range"):
        mesh.slice(gpus=4)


def test_actors_on_a_slice_count_from_zero(spawn):
    mesh = spawn({"gpus": 4})
    part = mesh.slice(gpus=slice(2, 4))
    assert over(part, "rank") == [{"gpus": 0}, {"gpus": 1}]
    assert over(part.slice(gpus=1), "pid") == over(mesh, "pid")[3:]
    counters = part.spawn("counter", Counter)
    assert counters.slice(gpus=1).pid.call_one().get() == over(mesh, "pid")[3]


def test_host_mesh_of_a_single_process(spawn):
    mesh = spawn({"gpus": 2})
    host = mesh.slice(gpus=1).host_mesh
    assert host == this_host()
    with pytest.raises(NotImplementedError, match="one process only"):
        mesh.host_mesh
    with pytest.raises(RuntimeError, match="slice or a copy"):
        host.shutdown()
    with pytest.raises(RuntimeError, match="slice or a copy"):
        pickle.loads(pickle.dumps(this_host())).stop()


def test_to_table(spawn):
    mesh = spawn({"gpus": 2})
    pids = over(mesh, "pid")
    head, *rows = mesh.to_table().splitlines()
    assert head.split() == ["rank", "coordinates", "pid", "state"]
    assert [
        (str(pids[i]) in row, "running" in row, "'gpus'" in row) for i, row in enumerate(rows)
    ] == [(True, True, True)] * 2


def test_to_table_has_the_axes_of_the_mesh_that_is_asked(spawn):
    mesh = spawn({"gpus": 4})
    [_, *rows] = mesh.split(gpus=("dp", "tp"), tp=2).rename(dp="replicas").to_table().splitlines()
    assert [row[: row.index("}") + 1] for row in rows] == [
        f"{rank}  {{'replicas': {rank // 2}, 'tp': {rank % 2}}}" for rank in range(4)
    ]
    [_, *rows] = mesh.slice(gpus=slice(2, 4)).to_table().splitlines()
    assert [row.partition("}")[0] for row in rows] == ["2  {'gpus': 0", "3  {'gpus': 1"]


# ---------------------------------------------------------------------------------------- this_proc


def test_this_proc_is_this_process():
    here = this_proc()
    assert isinstance(here, ProcMesh)
    assert (here.sizes, len(here)) == ({}, 1)
    assert here.initialized.get() is True
    counter = here.spawn("counter", Counter, 5)
    assert counter.pid.call_one().get() == os.getpid()
    assert counter.add.call_one(1).get() == 6
    counter.stop().get()


def test_this_proc_is_not_stopped_like_others():
    with pytest.raises(RuntimeError, match="shutdown_context"):
        this_proc().stop()
    assert this_proc().spawn("counter", Counter).get.call_one().get() == 0


def test_a_rank_has_a_process_and_a_host_too(spawn):
    class Inner(Actor):
        @endpoint
        def look(self):
            inner = this_proc().spawn("inner", Process)
            return inner.pid.call_one().get() == os.getpid(), this_host()

    same, host = spawn().spawn("outer", Inner).look.call_one().get()
    assert same
    assert host == this_host()


# ------------------------------------------------------------------------- older and smaller things


def test_meshes_may_be_awaited(spawn):
    async def main():
        mesh = await proc_mesh(gpus=2, env={"OLD": "style"})
        async with mesh:
            actors = await mesh.spawn("process", Process)
            return [value for _, value in await actors.env.call("OLD")]

    assert asyncio.run(main()) == [("style",)] * 2


def test_proc_mesh_is_for_this_host():
    with pytest.raises(ValueError, match="attach_to_workers"):
        proc_mesh(hosts=2)


def test_execute_runs_a_function_everywhere(spawn):
    mesh = spawn({"gpus": 2})
    assert mesh.execute(lambda x, y=1: x * y, 21, y=2).values() == [42, 42]
    assert mesh.slice(gpus=1).execute(os.getpid).values() == over(mesh, "pid")[1:]
    with pytest.raises(ActorError, match="division by zero"):
        mesh.execute(lambda: 1 / 0)


def test_spawn_callbacks(spawn):
    seen = []
    register_proc_mesh_spawn_callback(seen.append)
    first = spawn({"gpus": 1}, name="first")
    unregister_proc_mesh_spawn_callback(seen.append)
    spawn({"gpus": 1})
    assert [mesh.name for mesh in seen] == ["first"]
    assert seen[0].initialized.get() is True
    assert seen[0].sizes == first.sizes
    unregister_proc_mesh_spawn_callback(seen.append)
