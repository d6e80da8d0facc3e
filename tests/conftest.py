"""Fixtures for every test: a private world, the leak check, the gate for what a machine may lack.

The leak check has two scopes. A test that starts a client has it shut down and checked at its own
end. Tests that ask for `mesh_runtime` share one client; at the end of their module its meshes are
stopped, and that is checked.
"""

import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import zmq

import monarch_nb
from monarch_nb import ProcMesh, this_host
from monarch_nb.control.client import running_client
from monarch_nb.testing import processes
from tests import inside, support
from tests.goals import goal, pytest_terminal_summary

__all__ = ["goal", "pytest_terminal_summary"]

hypothesis.settings.register_profile("push", derandomize=True, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=5000, deadline=None)
hypothesis.settings.load_profile("push")

PRELOAD = "MONARCH_NB_PRELOAD"
_MORE = {"optim": "torch._dynamo", "fully_shard": "torch.distributed.fsdp"}
_world = pytest.StashKey[str]()


# ---------------------------------------------------------------------------------- a private world


def pytest_configure(config: pytest.Config) -> None:
    """Give the session its own temp dir and Jupyter folders, and mark what it will start.

    So does each worker of pytest-xdist; what only hands out the tests needs none.
    """
    if config.getoption("numprocesses", None):
        return
    root = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path stays
    world = tempfile.mkdtemp(prefix="mt-", dir=root)  # short: unix sockets have 107 bytes at most
    config.stash[_world] = world
    tempfile.tempdir = None
    os.environ["TMPDIR"] = world
    os.environ.pop("XDG_RUNTIME_DIR", None)
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[name] = f"{world}/{name.lower()}"
    os.environ["MONARCH_NB_HOME"] = f"{world}/keys"  # no meshes that somebody keeps, nor keys
    processes.mark_session()
    os.environ[PRELOAD] = "none"
    # Threads of PyTorch that wait leave the processors to ranks that work: three times as fast.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what pytest_configure made."""
    if world := config.stash.get(_world, None):
        shutil.rmtree(world, ignore_errors=True)


# ------------------------------------------------------------------------------------- what is slow

SLOW = {
    "browser",
    "executed",
    "fake_kernel",
    "fresh",
    "kernel",
    "notebook",
    "own",
    "shown",
}  # fixtures


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a kernel or a browser takes its time, however little the test does with it."""
    for item in items:
        if SLOW & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is here by now stays: 700 000 objects that `gc.collect()` need not look at again; and
    the descriptors of CUDA, which are no leak of the first test that uses a GPU."""
    uses_gpu = any(item.get_closest_marker("gpu") for item in session.items)
    if uses_gpu and _lacks("gpu") is None:
        import torch

        torch.ones(1, device="cuda")
    gc.collect()
    gc.freeze()


# ----------------------------------------------------------------------------- what a host preloads


@pytest.fixture(scope="module", autouse=True)
def preload(request: pytest.FixtureRequest) -> Iterator[None]:
    """A host loads what the text of the module speaks of, and no other host of it loads torch: that
    takes three seconds of a processor, and as long again with what optimizers want.

    So with the `NOTEBOOK` of the module, where it has one.
    """
    files = [request.path, getattr(request.module, "NOTEBOOK", request.path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PRELOAD, _spoken_of("".join(file.read_text() for file in files)))
        yield


def _spoken_of(text: str) -> str:
    if "torch" not in text:
        return "none"
    more = [module for word, module in _MORE.items() if word in text]
    return ",".join(["torch", "numpy", *more])


# ----------------------------------------------------------------------------------- the leak check


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, thread, fd, shared memory, temp dir or port behind."""
    if "mesh_runtime" in request.fixturenames:
        yield
        return
    shared = running_client() is not None
    before = support.Snapshot.take(unmarked=True)
    yield
    if not shared and running_client() is not None:
        _stop_client()
    before.assert_clean()


class SharedClient:
    """The client that modules hand on, since its start takes two seconds."""

    def __init__(self) -> None:
        self._before: support.Snapshot | None = None

    def start(self) -> None:
        """Have one that has had a mesh: what the first one makes is no leak of a test.

        A zygote that is asked when it is ready has loaded what it loads when it is idle. So ranks
        that train need not load it, each for itself.
        """
        if self._before is None:
            self._before = support.Snapshot.take(unmarked=True)
        if running_client() is None:
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv(PRELOAD)
                this_host().initialized.get(timeout=20)
            this_host().spawn_procs(per_host={"gpus": 1}).stop().get(timeout=20)

    def stop(self) -> None:
        """End it, if there is one; it leaves nothing."""
        before, self._before = self._before, None
        if before is not None:
            _stop_client()
            before.assert_clean()


_shared = SharedClient()


@pytest.fixture(scope="session", autouse=True)
def shared_client(pyzmq_keeps_a_thread: None) -> Iterator[SharedClient]:
    yield _shared
    _shared.stop()


@pytest.fixture(scope="session")
def pyzmq_keeps_a_thread() -> None:
    """It starts one, with descriptors, at the first large send, for the life of the process."""
    with zmq.Context() as context:
        sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        with sender, receiver:
            receiver.bind("inproc://large")
            sender.connect("inproc://large")
            sender.send(bytes(1 << 20), copy=False)
            receiver.recv()


@pytest.fixture(scope="module")
def mesh_runtime(shared_client: SharedClient) -> Iterator[None]:
    """The client that tests share; the leak check of a module waits for the end of its meshes."""
    shared_client.start()
    client = running_client()
    before = support.Snapshot.take(unmarked=True)
    yield
    if running_client() is not client:  # tests have ended it
        shared_client.stop()
        return
    for mesh in inside.living_meshes():
        mesh.stop().get(timeout=20)
    before.with_what_a_client_keeps().assert_clean()


@pytest.fixture(scope="module")
def own_client(shared_client: SharedClient) -> Iterator[None]:
    """A client of the module's own, for tests that leave something in it or look at all it has.

    Such a module defines a `mesh_runtime` that asks for it.
    """
    shared_client.stop()
    shared_client.start()
    yield
    shared_client.stop()


def _stop_client() -> None:
    monarch_nb.shutdown_context().get(timeout=10)


# ------------------------------------------------------------------------------ meshes and failures


class Failures(list[monarch_nb.MeshFailure]):
    """In the order in which they came. `only_one`: a second until the test's end is an error."""

    only_one = False


@pytest.fixture(scope="module")
def procs(mesh_runtime) -> ProcMesh:
    """Four ranks on one axis, shared by the tests of a module."""
    return this_host().spawn_procs(per_host={"gpus": 4}, name="four")


@pytest.fixture
def spawn(mesh_runtime) -> Iterator[Callable[..., ProcMesh]]:
    """`this_host().spawn_procs`, stopped in the end."""
    made: list[ProcMesh] = []

    def start(*args, **kwargs):
        made.append(this_host().spawn_procs(*args, **kwargs))
        return made[-1]

    yield start
    for mesh in made:
        mesh.stop().get()


@pytest.fixture
def failures() -> Iterator[Failures]:
    """What reaches the root while the test runs; it ends nothing."""
    found = Failures()
    monarch_nb.unhandled_fault_hook = found.append
    yield found
    if (running := running_client()) is not None:
        # a call that has raised may have been woken before the root is told
        running.proc.links.loop.call(lambda: None)
    del monarch_nb.unhandled_fault_hook


# -------------------------------------------------------------------------- what a machine may lack


@pytest.fixture(scope="session")
def needs() -> Callable[..., None]:
    """`needs("netns")` skips the test, with the reason, on a machine that cannot do it."""
    return _require


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The markers `gpu` and `browser` need what they say; who asks for no client finds none."""
    if item.path not in _with_a_client(item.session):
        _shared.stop()
    for marker, capability in (("gpu", "gpu"), ("browser", "chromium")):
        if item.get_closest_marker(marker):
            _require(capability)


@functools.cache
def _with_a_client(session: pytest.Session) -> set[Path]:
    """The modules that ask for the shared client."""
    asks = (item for item in session.items if "mesh_runtime" in getattr(item, "fixturenames", ()))
    return {item.path for item in asks}


def _require(*capabilities: str) -> None:
    for capability in capabilities:
        if reason := _lacks(capability):
            pytest.skip(f"needs {capability}: {reason}")


@functools.cache
def _lacks(capability: str) -> str | None:
    probe = _PROBES[capability]  # KeyError: a capability nobody wrote a probe for
    return probe() if callable(probe) else _refused(probe)


def _refused(command: str) -> str | None:
    done = subprocess.run(
        ["sh", "-ec", command], capture_output=True, text=True, check=False, timeout=20
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"`{command}`: {lines[-1]}"


def _no_chromium() -> str | None:
    return None if support.chromium() else "no chromium on PATH (Debian: apt-get install chromium)"


def _no_gpu() -> str | None:
    return None if Path("/dev/nvidiactl").exists() else "no NVIDIA device"


_PROBES: dict[str, str | Callable[[], str | None]] = {
    "chromium": _no_chromium,
    "gpu": _no_gpu,
    "machines": "unshare --net --uts --ipc --pid --mount --fork"
    " sh -ec 'mount -t sysfs none /sys; ip link add v0 type veth peer name v1'",
    "memory_cgroup": "d=/sys/fs/cgroup/memory/mnb-probe-$$; mkdir $d; rmdir $d",
    "netns": "n=mnb-probe-$$; ip netns add $n; trap 'ip netns del $n' 0;"
    " ip -n $n link add v0 type veth peer name v1",
    "pids_cgroup": "d=/sys/fs/cgroup/pids/mnb-probe-$$; mkdir $d; rmdir $d",
    "pidns": "unshare --pid --fork --mount-proc true",
    "private_shm": "unshare --mount mount -t tmpfs -o size=1m none /dev/shm",
    "root": "test $(id -u) = 0",
}


# ----------------------------------------------------------------------------- stacks on a time-out


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """A test that ran out of time shows where each of its processes was."""
    report = yield
    if call.when == "call" and call.excinfo and _is_timeout(call.excinfo.value):
        for pid in sorted(support.session_processes()):
            report.sections.append((support.describe_process(pid), _stacks(pid)))
    return report


def _is_timeout(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, TimeoutError) or text.startswith(("Timeout", "not within"))


def _stacks(pid: int) -> str:
    tool = Path(sys.executable).with_name("py-spy")
    try:
        done = subprocess.run(
            [tool, "dump", "--pid", str(pid)],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stacks: {error}"
    return done.stdout or done.stderr
