"""Part G 2.2 and the end of a client: scripts in which something fails, is interrupted, or ends."""

import signal
import time

import pytest

INTERRUPTED = {-signal.SIGINT, 128 + signal.SIGINT}

START = """
import asyncio, atexit, os, signal, sys, threading, time
import monarch_nb
from monarch_nb import (
    Actor, ActorError, SupervisionError, context, endpoint, shutdown_context, this_host, this_proc
)

class Fragile(Actor):
    @endpoint
    def fail(self):
        raise ValueError("on purpose")

    @endpoint
    def one(self):
        return 1

    @endpoint
    def nap(self, seconds):
        time.sleep(seconds)

atexit.register(lambda: print("atexit", flush=True))
fragile = this_proc().spawn("fragile", Fragile)
"""


# ---------------------------------------------------------------------------- the unhandled failure


def test_the_default_reports_and_interrupts_the_main_thread(program):
    done = program(START + "fragile.fail.broadcast()\ntime.sleep(20)\nprint('not reached')")
    assert done.returncode in INTERRUPTED
    assert done.stdout == "atexit\n"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Unhandled monarch error on the root actor, hostname=")
    assert ", PID=" in lines[0]
    assert "failure on mesh 'fragile' with event" in lines[1]
    assert "ValueError: on purpose" in lines[1]
    assert lines[-1] == "KeyboardInterrupt"


@pytest.mark.slow
def test_the_default_interrupts_a_blocked_get(program):
    source = (
        START
        + """
other = this_proc().spawn("other", Fragile)
fragile.fail.broadcast()
try:
    other.nap.call_one(60).get()
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    done = program(source)
    assert done.stdout == "interrupted\natexit\n", done.stderr


@pytest.mark.slow
def test_a_second_failure_leaves_a_program_that_ends_its_clean_up(program):
    source = (
        START
        + """
others = [this_proc().spawn(f"other{i}", Fragile) for i in range(3)]

async def main():
    fragile.fail.broadcast()
    try:
        await asyncio.sleep(20)
    finally:
        for other in others:
            other.fail.broadcast()
            await asyncio.sleep(0.3)
        print("cleaned up", flush=True)

asyncio.run(main())
"""
    )
    done = program(source)
    assert done.returncode in INTERRUPTED
    assert done.stdout == "cleaned up\natexit\n", done.stderr
    for name in ("fragile", "other0", "other1", "other2"):
        assert f"failure on mesh '{name}' with event" in done.stderr


def test_a_hook_that_returns_swallows(program):
    source = (
        START
        + """
called = threading.Event()
def hook(failure):
    print(type(failure).__name__, failure.mesh_name, flush=True)
    called.set()
monarch_nb.unhandled_fault_hook = hook
fragile.fail.broadcast()
assert called.wait(10)
print(this_proc().spawn("next", Fragile).one.call_one().get())
"""
    )
    done = program(source)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "MeshFailure fragile\n1\natexit\n"


@pytest.mark.parametrize("raising", ["raise OSError('of the hook')", "sys.exit(1)"])
def test_a_hook_that_raises_ends_the_program_once(program, raising):
    source = (
        START
        + f"""
def hook(failure):
    print("called", flush=True)
    {raising}
monarch_nb.unhandled_fault_hook = hook
fragile.fail.broadcast()
time.sleep(20)
"""
    )
    done = program(source)
    assert done.returncode in INTERRUPTED
    assert done.stdout == "called\natexit\n"
    assert "Unhandled monarch error on the root actor" in done.stderr


def test_the_hook_may_use_the_mesh(program):
    source = (
        START
        + """
done = threading.Event()
def hook(failure):
    print(this_proc().spawn("again", Fragile).one.call_one().get(), flush=True)
    done.set()
monarch_nb.unhandled_fault_hook = hook
fragile.fail.broadcast()
assert done.wait(10)
"""
    )
    assert program(source).stdout == "1\natexit\n"


@pytest.mark.slow
def test_a_failure_that_a_call_has_raised_ends_nothing(program):
    source = (
        START
        + """
mesh = this_host().spawn_procs()
try:
    mesh.execute(os._exit, 3)
except SupervisionError as error:
    print("caught", error.exitcode)
print(fragile.one.call_one().get())
mesh.stop().get()
"""
    )
    done = program(source)
    assert (done.returncode, done.stdout) == (0, "caught 3\n1\natexit\n"), done.stderr


def test_an_error_that_nobody_catches(program):
    done = program(START + "fragile.fail.call_one().get()")
    assert done.returncode == 1
    assert done.stdout == "atexit\n"
    assert "monarch_nb.errors.ActorError: Actor call fragile.fail failed." in done.stderr
    assert 'raise ValueError("on purpose")' in done.stderr
    assert len(done.stderr.splitlines()) <= 25


# ------------------------------------------------------------------------------------------ the end


@pytest.mark.slow
def test_an_interrupt_during_get(program):
    source = (
        START
        + """
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
fragile.nap.call_one(60).get()
"""
    )
    started = time.monotonic()
    done = program(source)
    assert done.returncode in INTERRUPTED
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_an_interrupt_reaches_the_endpoint(program):
    source = (
        START
        + """
mesh = this_host().spawn_procs()
far = mesh.spawn("far", Fragile)
far.one.call_one().get()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    far.nap.call_one(60).get()
except KeyboardInterrupt:
    print(far.one.call_one().get(timeout=5))
"""
    )
    assert program(source).stdout == "1\natexit\n"


def test_a_script_that_does_nothing_but_import():
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", "import monarch_nb"], check=True, timeout=20)


@pytest.mark.slow
def test_a_script_that_just_ends_cleans_up(program, tmp_path):
    source = (
        START
        + f"""
class Tidy(Actor):
    def __init__(self, name):
        self.name = name

    @endpoint
    def one(self):
        return 1

    def __cleanup__(self, exc):
        with open({str(tmp_path / "tidy")!r}, "a") as file:
            file.write(self.name + "\\n")

here = this_proc().spawn("here", Tidy, "here")
there = this_host().spawn_procs({{"gpus": 2}}).spawn("there", Tidy, "there")
here.one.call_one().get()
there.one.call().get()
"""
    )
    done = program(source)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted((tmp_path / "tidy").read_text().split()) == ["here", "there", "there"]


def test_a_cleanup_that_hangs_does_not_hold_the_end_up(program, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_CLEANUP_S", "0.3")
    source = (
        START
        + """
class Slow(Actor):
    @endpoint
    def one(self):
        return 1

    def __cleanup__(self, exc):
        print("cleaning", flush=True)
        while True:
            time.sleep(0.01)

class AsyncSlow(Actor):
    @endpoint
    async def one(self):
        return 1

    async def __cleanup__(self, exc):
        print("cleaning", flush=True)
        await asyncio.sleep(60)

for cls in (Slow, AsyncSlow):
    actor = this_proc().spawn("slow", cls)
    actor.one.call_one().get()
    started = time.monotonic()
    actor.stop().get(timeout=10)
    print(time.monotonic() - started < 5)
"""
    )
    done = program(source)
    assert done.stdout == "cleaning\nTrue\ncleaning\nTrue\natexit\n", done.stderr


@pytest.mark.slow
def test_shutdown_context(program):
    source = (
        START
        + """
first = context().actor_instance.proc_id
mesh = this_host().spawn_procs()
mesh.initialized.get()
waiting = fragile.nap.call_one(0.1)
shutdown_context(host_timeout=5).get()
shutdown_context().get()
print(isinstance(waiting.exception(timeout=5), SupervisionError) or waiting.get() is None)
try:
    mesh.spawn("late", Fragile)
except RuntimeError as error:
    print(error)
print(context().actor_instance.proc_id != first)
print(this_host().spawn_procs().spawn("new", Fragile).one.call_one().get())
"""
    )
    done = program(source)
    assert done.stdout.splitlines() == [
        "True",
        "`ProcMesh` has already been stopped: 'mesh0', the client was shut down",
        "True",
        "1",
        "atexit",
    ], done.stderr


@pytest.mark.slow
def test_hosts_are_shut_down_or_stopped(program):
    source = (
        START
        + """
host = this_host()
first = host.spawn_procs({"gpus": 2})
far = first.spawn("far", Fragile)
far.one.call().get()
host.stop().get()
try:
    far.one.call().get(timeout=10)
except SupervisionError as error:
    print("stopped")
second = host.spawn_procs()
print(second.spawn("far", Fragile).one.call_one().get())
host.shutdown().get()
for use in (host.spawn_procs, host.shutdown, host.stop):
    try:
        use()
    except RuntimeError as error:
        print(error)
try:
    second.spawn("late", Fragile)
except RuntimeError:
    print("gone")

async def main():
    async with this_host() as again:
        mesh = again.spawn_procs()
        print(await mesh.spawn("new", Fragile).one.call_one())
    try:
        again.spawn_procs()
    except RuntimeError as error:
        print(error)

asyncio.run(main())
"""
    )
    done = program(source)
    closed = "HostMesh has already been shut down"
    expected = ["stopped", "1", closed, closed, closed, "gone", "1", closed, "atexit"]
    assert done.stdout.splitlines() == expected, done.stderr
    assert done.returncode == 0


def test_a_fork_of_the_client_is_no_member(program):
    source = (
        START
        + """
fragile.one.call_one().get()
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), fragile.one.call_one().get())
"""
    )
    assert program(source).stdout == "7 1\natexit\n"


@pytest.mark.slow
def test_actors_of_the_rank_s_root_that_fail_are_reported(program):
    """Spawned by a plain function on a rank: no actor owns them, and the failure is not lost."""
    source = (
        START
        + """
def spawn_and_break():
    def of_nobody():
        this_proc().spawn("orphan", Fragile).fail.broadcast()
    thread = threading.Thread(target=of_nobody)
    thread.start()
    thread.join()

mesh = this_host().spawn_procs()
mesh.execute(spawn_and_break)
print(mesh.execute(lambda: 1).item())
time.sleep(0.3)
mesh.stop().get()
"""
    )
    done = program(source)
    assert done.stdout == "1\natexit\n"
    assert "failure on mesh 'orphan' with event" in done.stderr
