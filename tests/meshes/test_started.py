"""Ranks that are started by a command: another interpreter, a wrapper, a mesh of both kinds."""

import dataclasses
import os
import re
import signal
import sys
import time
import venv
from pathlib import Path

import pytest
import torch

from monarch_nb import (
    Actor,
    BootstrapCommand,
    RankExited,
    default_bootstrap_cmd,
    endpoint,
    this_host,
)
from monarch_nb.control.client import client
from tests.actors.cast import Counter, over
from tests.source import ROOT
from tests.support import eventually, is_running, listening_ports

PLAIN = default_bootstrap_cmd()
pytestmark = pytest.mark.usefixtures("mesh_runtime")


def wrapped(program, *args, tail=(PLAIN.program, *PLAIN.args)):
    return dataclasses.replace(PLAIN, program=program, args=(*args, *tail))


class Torch(Actor):
    """Uses it."""

    @endpoint
    def draw(self):
        return float(torch.rand(1)), os.environ["OMP_NUM_THREADS"], torch.get_num_threads()

    @endpoint
    def python(self):
        return sys.executable, sys.prefix

    @endpoint
    def meet(self):
        torch.distributed.init_process_group("gloo")
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        ports = listening_ports(os.getpid())
        torch.distributed.destroy_process_group()
        return int(total), any("29500" in port for port in ports)  # that of PyTorch's own store


# -------------------------------------------------------------------------------- what starts ranks


def test_the_default_forks():
    assert PLAIN.program == sys.executable
    assert PLAIN.args == ("-P", "-m", "monarch_nb.host.rank")
    assert _arguments(this_host().spawn_procs(bootstrap_command=PLAIN)) == [
        b"monarch_nb.host.zygote.zygote"
    ]
    assert _arguments(this_host().spawn_procs(bootstrap_command=BootstrapCommand())) == [
        b"monarch_nb.host.zygote.zygote"
    ]


def _arguments(mesh):
    """The module that each process of the mesh was started with."""
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in over(mesh, "pid")]
    return [line[line.index(b"-m") + 1] for line in lines]


@pytest.mark.slow
def test_another_interpreter(other_python, spawn):
    host = this_host().with_python_executable(other_python)
    mesh = host.spawn_procs({"gpus": 2})
    ranks = mesh.spawn("torch", Torch)
    pythons = ranks.python.call().get().values()
    assert set(pythons) == {(other_python, str(Path(other_python).parents[1]))}
    assert _arguments(mesh) == [b"monarch_nb.host.rank"] * 2
    first, second = ranks.draw.call().get().values()
    assert first[0] != second[0]
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert first[1:] == second[1:] == (str(threads), threads)
    assert ranks.meet.call().get().values() == [(2, False)] * 2
    mesh.stop().get()


class Spawning(Actor):
    @endpoint
    def pythons(self):
        """Return what runs this process, and what runs one that it starts on its host."""
        inner = this_host().spawn_procs()
        return sys.executable, inner.execute(lambda: sys.executable).item()


@pytest.mark.slow
def test_what_another_interpreter_starts_runs_in_it_too(other_python):
    with this_host().with_python_executable(other_python).spawn_procs() as mesh:
        pythons = mesh.spawn("spawning", Spawning).pythons.call_one().get()
    assert pythons == (other_python, other_python)


def test_a_command_takes_the_place_of_the_interpreter(other_python, spawn):
    mesh = this_host().with_python_executable(other_python).spawn_procs(bootstrap_command=PLAIN)
    assert _arguments(mesh) == [b"monarch_nb.host.zygote.zygote"]
    mesh.stop().get()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["env", "nice", "script"])
def test_wrappers(kind, spawn, tmp_path):
    script = tmp_path / "wrapper"
    script.write_text('#!/bin/sh\n# arguments as given\nexport SEEN="$*"\nexec "$@"\n')
    script.chmod(0o755)
    command = {
        "env": wrapped("env", "SEEN=by env"),
        "nice": wrapped("nice", "-n", "5").with_env({"SEEN": "niced"}),
        "script": dataclasses.replace(wrapped(str(script)), arg0="anything"),
    }[kind]
    mesh = spawn({"gpus": 1}, bootstrap_command=command, env={"MINE": "yes"})
    expected = {
        "env": "by env",
        "nice": "niced",
        "script": f"{sys.executable} {' '.join(PLAIN.args)}",
    }
    assert over(mesh, "env", "SEEN", "MINE", "RANK") == [(expected[kind], "yes", "0")]
    [pid] = over(mesh, "pid")
    if kind == "nice":
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5


@pytest.mark.slow
def test_a_command_that_inherits_nothing(spawn):
    command = dataclasses.replace(wrapped("env"), env={"ONLY": "this"}, inherit_env=False)
    [found] = over(spawn(bootstrap_command=command), "all_env")
    assert found["ONLY"] == "this"
    assert "PATH" not in found
    assert "HOME" not in found


@pytest.mark.slow
def test_forked_and_started_ranks_are_one_mesh(spawn, failures):
    def command(point):
        return wrapped("env", f"AT={point['gpus']}") if point["gpus"] % 2 else PLAIN

    mesh = spawn({"gpus": 4}, bootstrap_command=command)
    assert over(mesh, "env", "AT", "RANK") == [(None, "0"), ("1", "1"), (None, "2"), ("3", "3")]
    assert _arguments(mesh) == [b"monarch_nb.host.zygote.zygote", b"monarch_nb.host.rank"] * 2
    assert mesh.spawn("torch", Torch).meet.call().get().values() == [(4, False)] * 4


@pytest.mark.slow
def test_a_bootstrap_function_and_binding(spawn):
    cpu = min(os.sched_getaffinity(0))

    def remember():
        sys.of_started = "seen"

    mesh = spawn(
        bootstrap=remember, bootstrap_command=wrapped("env"), proc_bind=[{"cpus": str(cpu)}]
    )
    assert over(mesh, "seen", "of_started") == ["seen"]
    assert over(mesh, "processors") == [[cpu]]


def test_a_file_beside_the_notebook_is_not_taken_for_a_module_of_pythons(
    spawn, tmp_path, monkeypatch
):
    (tmp_path / "json.py").write_text("raise SystemExit('the user has called it so')")
    monkeypatch.chdir(tmp_path)
    assert over(spawn(bootstrap_command=wrapped("env")), "env", "RANK") == [("0",)]


# --------------------------------------------------------------------------------------- their ends


@pytest.mark.slow
@pytest.mark.fault
def test_a_killed_one_is_known_at_once_and_healed_by_the_same_command(spawn, failures):
    def command(point):
        return wrapped("env", "HEALED=so") if point["gpus"] else PLAIN

    mesh = spawn({"gpus": 2}, bootstrap_command=command)
    counters = mesh.spawn("counters", Counter)
    pids = over(mesh, "pid")
    call = counters.get.call()
    call.get()
    seen = []
    client().supervision.on_exit.append(lambda _: seen.append(time.monotonic()))
    at = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    eventually(lambda: failures)
    assert seen[0] - at < 1.0
    assert "SIGKILL" in failures[0].report()
    mesh.heal()
    assert over(mesh, "env", "HEALED") == [(None,), ("so",)]
    assert _arguments(mesh) == [b"monarch_nb.host.zygote.zygote", b"monarch_nb.host.rank"]
    assert over(mesh, "pid")[0] == pids[0]
    assert counters.get.call().get().values() == [0, 0]
    again = over(mesh, "pid")
    mesh.stop().get()
    assert not any(map(is_running, again))


def failure_of(mesh):
    with pytest.raises(RankExited) as caught:
        mesh.initialized.get(timeout=20)
    return caught.value


def test_a_program_that_exits_at_once(spawn, failures):
    command = BootstrapCommand("sh", args=("-c", "echo no licence >&2; exit 3"))
    error = failure_of(spawn(bootstrap_command=command))
    assert (error.exitcode, error.log_tail) == (3, "no licence")
    assert "`sh -c 'echo no licence >&2; exit 3'`" in str(error)
    assert "no licence" in str(error).splitlines()[-2]


def test_an_interpreter_that_lacks_this_package(spawn, failures, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    monkeypatch.chdir(tmp_path)
    python = str(tmp_path / "bare/bin/python")
    host = this_host().with_python_executable(python)
    error = failure_of(host.spawn_procs(env={"PYTHONPATH": None}))
    assert error.exitcode == 1
    assert "No module named 'monarch_nb'" in str(error)
    assert python in str(error)
    error = failure_of(host.spawn_procs(env={"PYTHONPATH": str(ROOT)}))
    assert re.search(r"has no module '\w+'; install monarch_nb there", str(error))


def test_another_minor_version(spawn, failures, tmp_path):
    """A Python that says so of itself."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.version_info = (3, 2, 1)")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    error = failure_of(spawn(bootstrap_command=wrapped("env"), env=env))
    [line] = error.log_tail.splitlines()
    assert "runs Python 3.2.1" in line
    assert f"runs Python {sys.version.split()[0]}" in line
