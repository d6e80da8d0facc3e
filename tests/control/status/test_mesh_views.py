"""One mesh as a snapshot shows it, of a state that is none of a real mesh."""

from types import SimpleNamespace

from monarch_nb.control.status.boards import Boards
from monarch_nb.control.status.mesh_view import MeshView, Sources
from monarch_nb.core.shape.extent import Extent
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.process.exit import Exit

AGENT, OLD, NEW = 1 << HOST_SHIFT, 1 << HOST_SHIFT | 1, 1 << HOST_SHIFT | 2


def test_a_rank_that_is_healed_has_the_pid_of_its_new_process():
    state = SimpleNamespace(
        shape=SimpleNamespace(extent=Extent(["gpus"], [1])),
        processes=[OLD], agents=[AGENT], actors=[], pids={0: 41}, name="mesh0", number=1,
        version=1, ended=None, initialized=SimpleNamespace(done=lambda: True), restarting={},
    )  # fmt: skip
    sources = Sources(Boards(), {}, {}, pids={OLD: 41})
    view = MeshView(state, sources, 0)
    assert view.status(()).ranks[0].pid == 41
    state.processes, state.version = [NEW], 2
    view.status(())  # its process has been asked for: what the mesh knows is of the one before
    sources.pids[NEW] = 42
    assert view.status({NEW}).ranks[0].pid == 42


def test_a_rank_that_comes_back_by_itself_is_starting_until_its_process_tells_more():
    state = SimpleNamespace(
        shape=SimpleNamespace(extent=Extent(["gpus"], [1])),
        processes=[OLD], agents=[AGENT], actors=[], pids={0: 41}, name="mesh0", number=1,
        version=1, ended=None, initialized=SimpleNamespace(done=lambda: True), restarting={},
    )  # fmt: skip
    dead = {}
    view = MeshView(state, Sources(Boards(), dead, {}), 0)
    assert view.status(()).ranks[0].state == "idle"
    dead[OLD] = Exit(OLD, signal=9)
    state.restarting = {0: dead[OLD].plainly()}
    shown = "starting", "restarts: it was killed by signal 9 (SIGKILL)"
    assert [(rank.state, rank.detail) for rank in view.status(()).ranks] == [shown]
    state.processes, state.version = [NEW], 2
    assert [(rank.state, rank.detail) for rank in view.status(()).ranks] == [shown]
    state.restarting = {}
    assert [(rank.state, rank.detail) for rank in view.status(()).ranks] == [("idle", "")]
