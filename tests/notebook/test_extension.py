"""Loading and unloading, in a shell of this process."""

from monarch_nb.notebook.extension import load, load_ipython_extension, unload_ipython_extension
from monarch_nb.notebook.session import interrupt, session_of, shut_down, status_line
from tests.notebook.fake_client import FakeControl, install


def test_loading_twice_is_loading_once(shell):
    load_ipython_extension(shell)
    session = session_of(shell)
    load_ipython_extension(shell)
    assert session_of(shell) is session
    assert "mesh" in shell.magics_manager.magics["cell"]


def test_unloading_leaves_the_shell_as_it_was(shell):
    before = {event: list(found) for event, found in shell.events.callbacks.items()}
    formatter = shell.InteractiveTB.structured_traceback
    load_ipython_extension(shell)
    unload_ipython_extension(shell)
    assert session_of(shell) is None
    assert {event: list(found) for event, found in shell.events.callbacks.items()} == before
    assert shell.InteractiveTB.structured_traceback == formatter
    assert shell.find_cell_magic("mesh") is None
    unload_ipython_extension(shell)


def test_what_the_kernel_calls_works_without_a_session(shell):
    stopped = []
    interrupt(shell, lambda: stopped.append(1))
    shut_down(shell, 1.0)
    assert stopped == [1]
    assert status_line(shell) == "monarch_nb is not loaded"


def test_the_status_line(shell):
    load_ipython_extension(shell)
    assert status_line(shell) == "no mesh is up"
    fake = install(shell)
    session_of(shell).meshes.keep("mesh0", fake.spawn({"hosts": 2, "gpus": 2}, "mesh0"))
    assert status_line(shell) == "mesh0: 4 ranks (hosts=2 gpus=2)"
    fake.lost_ranks = [3]
    assert status_line(shell) == "mesh0: 4 ranks (hosts=2 gpus=2), 1 lost"


def test_shutting_down_ends_the_client(shell):
    load_ipython_extension(shell)
    fake = install(shell)
    fake.spawn({"gpus": 1}, "mesh0")
    shut_down(shell, 1.0)
    assert fake.client.has_shut_down


def test_tags_grow_and_calls_carry_the_tag_of_their_cell(shell):
    load_ipython_extension(shell)
    fake = install(shell)
    fake.spawn({"gpus": 1}, "mesh0")
    shell.user_ns["fake"] = fake
    shell.run_cell("first = fake.client.tag")
    shell.run_cell("second = fake.client.tag")
    assert 1 <= shell.user_ns["first"] < shell.user_ns["second"]


def test_a_cell_that_runs_cells_gets_its_tag_back(shell):
    load_ipython_extension(shell)
    session = session_of(shell)
    shell.user_ns["session"] = session
    shell.run_cell(
        "before = session.cells.running.tag\n"
        "get_ipython().run_cell('inner = session.cells.running.tag')\n"
        "after = session.cells.running.tag"
    )
    names = shell.user_ns
    assert names["before"] == names["after"] < names["inner"]
    assert session.cells.running is None


def test_an_interrupt_stops_the_controller_before_the_ranks(shell):
    """An interrupted rank's answer would end the wait, and the signal hit whatever comes next."""
    load_ipython_extension(shell)
    fake = install(shell)
    fake.spawn({"gpus": 1}, "mesh0")
    seen = []
    shell.user_ns["press"] = lambda: interrupt(
        shell, lambda: seen.append(list(fake.client.interrupted))
    )
    shell.run_cell("press()")
    assert seen == [[]]
    assert len(fake.client.interrupted) == 1


def test_a_client_that_starts_in_a_cell_is_heard_from_then_on(shell):
    starters = []

    class Started(FakeControl):
        def when_started(self, callback):
            starters.append(callback)
            return lambda: starters.remove(callback)

    session = load(shell, Started())
    session.control.spawn({"gpus": 1}, "mesh0")
    for started in starters:
        started()
    assert session.control.client.outputs == [session.output.route]
    assert session.control.client.failures == [session.output.notice]
