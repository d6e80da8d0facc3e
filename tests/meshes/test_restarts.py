"""Actors that are restarted: who fails comes back at the same place, and the others go on."""

import contextlib
import os
import re
import signal
import threading

import pytest

from monarch_nb import Channel, MeshFailure, RankExited, SupervisionError, this_proc
from monarch_nb.control.client import client
from monarch_nb.elastic import restart
from tests import inside, support
from tests.meshes.generators import Generator, Noting, Owner, Trainer

OFTEN = restart(max=100, within_s=60)


@pytest.fixture
def procs(spawn):
    return spawn({"gpus": 3}, name="mortals")


@pytest.fixture
def generators(procs):
    made = procs.spawn("generators", Generator, 10, supervise=OFTEN)
    assert counts(made) == [11, 11, 11]
    return made


def counts(generators):
    return list(generators.generate.call().get(timeout=20).values())


def pids(generators):
    return list(generators.pid.call().get(timeout=20).values())


def kill(generators, *ranks):
    """Kill the processes of ranks, and wait until they are gone."""
    before = pids(generators)
    for rank in ranks:
        os.kill(before[rank], signal.SIGKILL)
    support.eventually(lambda: not any(support.is_running(before[rank]) for rank in ranks))


def fates(tmp_path, *words):
    path = tmp_path / "fate"
    path.write_text(" ".join(words))
    return str(path)


@pytest.mark.fault
@pytest.mark.parametrize("lost", [(1,), (0, 2), (0, 1, 2)])
def test_a_killed_process_comes_back_and_the_others_keep_their_state(procs, generators, lost):
    before, part = pids(generators), generators.slice(gpus=slice(1, 3))
    for rank in lost:
        os.kill(before[rank], signal.SIGKILL)
    after = support.eventually(lambda: others_or_none(generators, before, lost))
    found = counts(generators)
    assert found == [11 if rank in lost else 12 for rank in range(3)]
    assert [rank for rank in range(3) if after[rank] != before[rank]] == list(lost)
    assert counts(part) == [count + 1 for count in found[1:]]
    assert "ready" in repr(generators)
    assert "ready" in repr(procs)
    assert counts(procs.spawn("more", Generator, 5)) == [6, 6, 6]


def others_or_none(generators, before, lost):
    # the processes, when all of these are new ones
    try:
        found = pids(generators)
    except SupervisionError:
        return None
    return found if all(found[rank] != before[rank] for rank in lost) else None


def pid_or_none(generator):
    return None if (found := generator.pid.call_one()).exception(timeout=20) else found.get()


def counts_or_none(generators):
    # the first calls may have been sent before anybody knew
    try:
        return counts(generators)
    except SupervisionError:
        return None


@pytest.mark.fault
def test_what_was_under_way_there_says_that_it_is_not_run_again(generators, tmp_path):
    victim, go_on = generators.slice(gpus=1), tmp_path / "go_on"
    port, started = Channel.open()
    held = victim.hold.call_one(port, go_on)
    pid = started.recv().get(timeout=20)
    note = tmp_path / "note"
    queued = [victim.generate.call_one(str(note)) for _ in range(5)]
    os.kill(pid, signal.SIGKILL)
    for call in (held, *queued):
        with pytest.raises(RankExited, match=r"rank 1 .*SIGKILL[^$]*is not run again") as caught:
            call.get(timeout=20)
        assert "heal" not in str(caught.value)
    assert victim.generate.call_one(str(note)).get(timeout=20) == 11
    assert note.read_text() == "x"


@pytest.mark.fault
def test_calls_before_during_and_after_run_once_or_fail(generators, tmp_path):
    victim, ended = generators.slice(gpus=0), threading.Event()
    notes = [tmp_path / f"note{number}" for number in range(300)]
    came: list[bool] = []

    def call():
        for note in notes:
            try:
                victim.generate.call_one(str(note)).get(timeout=20)
            except SupervisionError:
                came.append(False)
            else:
                came.append(True)
        ended.set()

    caller = threading.Thread(target=call)
    caller.start()
    for due in (50, 100, 150):
        support.eventually(lambda due=due: len(came) > due)
        os.kill(support.eventually(lambda: pid_or_none(victim)), signal.SIGKILL)
    caller.join(40)
    assert ended.is_set()
    ran = [note.read_text() if note.exists() else "" for note in notes]
    assert all(each == "x" for each, came_back in zip(ran, came, strict=True) if came_back)
    assert set(ran) <= {"", "x"}
    assert came.count(False) <= 3


@pytest.mark.fault
def test_a_trainer_that_owns_nothing_sees_one_failed_call_for_each_death(generators, spawn):
    trainer = spawn().spawn("trainer", Trainer)
    running = trainer.train.call_one(generators, 4000)
    for rank in (0, 1, 2):
        kill(generators, rank)
        support.eventually(lambda: counts_or_none(generators))
    assert running.get(timeout=40) <= 3
    assert trainer.call.call_one(generators).get(timeout=20)


@pytest.mark.fault
def test_an_actor_that_has_failed_is_made_again_in_its_process(generators, spawn):
    trainer = spawn().spawn("trainer", Trainer)
    before = pids(generators)
    running = trainer.train.call_one(generators, 4000)
    for _ in range(5):
        generators.slice(gpus=2).fail.broadcast()
        assert support.eventually(lambda: counts_or_none(generators))
    assert running.get(timeout=40) <= 5
    assert pids(generators) == before
    assert counts(generators)[0] > 100
    generators.slice(gpus=2).fail.broadcast()
    assert count_after_failure(generators) <= 12


def count_after_failure(generators):
    one = generators.slice(gpus=2)
    found = one.generate.call_one().exception(timeout=20)
    if found is None:
        return one.generate.call_one().get(timeout=20)
    assert re.search("(?s)nobody waits.*is not run again", str(found))
    return one.generate.call_one().get(timeout=20)


@pytest.mark.fault
def test_kills_in_the_midst_of_restarts_are_restarts_too(procs, tmp_path):
    fate = fates(tmp_path)
    made = procs.spawn("generators", Generator, fate=fate, supervise=OFTEN)
    assert counts(made) == [1, 1, 1]
    fates(tmp_path, "killed", "killed", "raises", "killed", "raises")
    kill(made, 1)
    assert support.eventually(lambda: counts_or_none(made))[1] == 1
    assert not (tmp_path / "fate").read_text()


@pytest.mark.fault
def test_a_rank_that_fails_too_often_is_lost_and_its_owner_told(procs, tmp_path, failures):
    wanted = restart(max=2, within_s=60)
    fate = fates(tmp_path)
    made = procs.spawn("generators", Generator, fate=fate, supervise=wanted)
    assert counts(made) == [1, 1, 1]
    fates(tmp_path, "killed", "killed", "killed")
    kill(made, 1)
    [failure] = support.eventually(lambda: failures)
    assert failure.mesh_name == "generators"
    assert failure.crashed_ranks == [1]
    assert "rank 1 was restarted 2 times within 60 s" in failure.report()
    with pytest.raises(SupervisionError, match="restarted 2 times within 60 s") as caught:
        counts(made)
    assert "mesh.heal()" in str(caught.value)
    assert made.slice(gpus=0).generate.call_one().get(timeout=20) == 2
    fates(tmp_path)
    made.heal()
    assert counts(made) == [3, 1, 2]
    kill(made, 1)  # and it may be restarted again
    assert support.eventually(lambda: counts_or_none(made))[1] == 1


@pytest.mark.fault
def test_a_trainer_is_told_that_a_rank_does_not_come_back(procs, spawn, tmp_path, failures):
    trainer = spawn().spawn("trainer", Trainer)
    fate = fates(tmp_path)
    made = procs.spawn("generators", Generator, fate=fate, supervise=restart(max=1, within_s=60))
    assert len(trainer.call.call_one(made).get(timeout=20)) == 3
    fates(tmp_path, "killed")
    kill(made, 1)
    support.eventually(lambda: failures)
    with pytest.raises(Exception, match="restarted 1 time within 60 s"):
        trainer.call.call_one(made).get(timeout=20)
    late = spawn().spawn("late", Trainer)
    with pytest.raises(Exception, match="SIGKILL"):
        late.call.call_one(made).get(timeout=20)


@pytest.mark.fault
def test_an_actor_that_fails_too_often_in_its_process(procs, spawn, failures):
    trainer = spawn().spawn("trainer", Trainer)
    made = procs.spawn("generators", Generator, supervise=restart(max=1, within_s=60))
    assert len(trainer.call.call_one(made).get(timeout=20)) == 3
    for _ in range(2):
        support.eventually(lambda: counts_or_none(made))
        made.slice(gpus=1).fail.broadcast()
    [failure] = support.eventually(lambda: failures)
    assert "nobody waits" in failure.report()
    assert "rank 1 was restarted 1 time within 60 s" in failure.report()
    assert isinstance(failure.cause, ValueError)
    with pytest.raises(Exception, match="(?s)nobody waits.*restarted 1 time within 60 s"):
        trainer.call.call_one(made).get(timeout=20)


def test_what_cannot_be_made_the_first_time_fails_as_without(procs, tmp_path, failures):
    made = procs.spawn("generators", Generator, fate=fates(tmp_path, "raises"), supervise=OFTEN)
    with pytest.raises(Exception, match="cannot be made"):
        made.initialized.get(timeout=20)
    [failure] = support.eventually(lambda: failures)
    assert "cannot be made" in failure.report()
    with pytest.raises(SupervisionError):
        counts(made)


@pytest.mark.fault
def test_actors_beside_them_that_nobody_restarts_are_lost(procs, generators, failures):
    others = procs.spawn("others", Generator, 20)
    assert counts(others) == [21, 21, 21]
    kill(generators, 1)
    [failure] = support.eventually(lambda: failures)
    assert (failure.mesh_name, failure.crashed_ranks) == ("others", [1])
    assert support.eventually(lambda: counts_or_none(generators))[1] == 11
    with pytest.raises(SupervisionError, match="heal"):
        counts(others)
    procs.heal()
    assert counts(others) == [22, 21, 22]
    assert counts(generators)[1] == 12


@pytest.mark.fault
def test_functions_that_a_mesh_has_run_are_no_loss(procs, generators, failures):
    assert len(set(procs.execute(os.getpid).values())) == 3
    kill(generators, 1)
    assert support.eventually(lambda: counts_or_none(generators))[1] == 11
    assert procs.execute(os.getpid).values() == pids(generators)
    assert not failures


@pytest.mark.fault
@pytest.mark.parametrize("what", ["procs", "generators"])
def test_a_stop_that_comes_with_a_death(spawn, what, failures):
    trainer = spawn().spawn("trainer", Trainer)
    for _ in range(5):
        procs = spawn({"gpus": 2})
        generators = procs.spawn("generators", Generator, supervise=OFTEN)
        running = trainer.train.call_one(generators, 200)
        before = pids(generators)
        os.kill(before[0], signal.SIGKILL)
        {"procs": procs, "generators": generators}[what].stop().get(timeout=20)
        assert running.get(timeout=30) <= 200
        with pytest.raises(SupervisionError, match="stopped"):
            counts(generators)
        procs.stop().get(timeout=20)
    assert not any(failure.mesh_name == "generators" for failure in failures)


@pytest.mark.parametrize("what", ["procs", "generators"])
def test_a_stop_ends_the_wait_for_a_restart(procs, generators, what):
    state = inside.state(generators)
    state.await_return([1])  # nobody begins it: it may take as long as a host needs
    state.lose(MeshFailure(state, [1], "was lost"))
    told: list[str] = []

    def call():
        with pytest.raises(SupervisionError) as caught:
            generators.slice(gpus=1).generate.call_one()
        told.append(str(caught.value))

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(0.3)
    assert caller.is_alive()
    {"procs": procs, "generators": generators}[what].stop().get(timeout=20)
    caller.join(20)
    assert "status stopped: stopped by client" in told[0]


@pytest.mark.fault
def test_a_stop_in_the_midst_of_a_restart_ends_what_is_made_after_it(procs, tmp_path):
    note = tmp_path / "note"
    made = procs.spawn("noting", Noting, str(note), supervise=OFTEN)
    before = pids(made)
    client().on_heal(lambda mesh, _: mesh == procs.name and made.stop().get(timeout=20))
    os.kill(before[1], signal.SIGKILL)
    support.eventually(lambda: note.read_text().count("made") == 4)
    support.eventually(lambda: note.read_text().count("ended") == 3)


@pytest.mark.fault
def test_generators_of_an_actor(spawn):
    owner = spawn().spawn("owner", Owner)
    generators = owner.handle.call_one().get(timeout=20)
    assert counts(generators) == [1, 1]
    trainer = spawn().spawn("trainer", Trainer)
    assert trainer.call.call_one(generators).get(timeout=20) == [2, 2]
    for number in range(3):
        kill(generators, 1)
        assert support.eventually(lambda: counts_or_none(generators))[1] == 1
        assert trainer.call.call_one(generators).get(timeout=20)[1] == 2, number
    assert owner.failures.call_one().get(timeout=20) == []
    kill(generators, 1)
    [told] = support.eventually(lambda: owner.failures.call_one().get(timeout=20))
    assert "rank 1 was restarted 3 times within 60 s" in told
    with pytest.raises(SupervisionError, match="restarted 3 times within 60 s"):
        counts(generators)


def one_that_waits(call):
    """A call that is not answered in a while; None where it was sent before the loss was known."""
    made = call()
    with contextlib.suppress(SupervisionError, TimeoutError):
        made.get(timeout=0.3)
    return None if made.done() else made


@pytest.mark.fault
def test_an_owner_that_dies_lets_nobody_wait(spawn, failures):
    owner = spawn().spawn("owner", Owner)
    generators = owner.handle.call_one().get(timeout=20)
    trainer = spawn().spawn("trainer", Trainer)
    assert trainer.call.call_one(generators).get(timeout=20) == [1, 1]
    boss, [victim, _] = owner.pid.call_one().get(timeout=20), pids(generators)
    support.stop(boss)  # it cannot restart anything
    os.kill(victim, signal.SIGKILL)
    lost = generators.slice(gpus=0)
    call = support.eventually(lambda: one_that_waits(lambda: trainer.train.call_one(lost, 1)))
    os.kill(boss, signal.SIGKILL)
    assert call.get(timeout=20) == 1


@pytest.mark.fault
def test_calls_of_others_wait_while_the_owner_has_not_restarted_an_actor(spawn):
    owner = spawn().spawn("owner", Owner)
    generator = owner.handle.call_one().get(timeout=20).slice(gpus=0)
    boss = owner.pid.call_one().get(timeout=20)
    assert [generator.generate.call_one().get(timeout=20) for _ in range(2)] == [1, 2]
    support.stop(boss)
    generator.fail.broadcast()
    call = support.eventually(lambda: one_that_waits(generator.generate.call_one))
    os.kill(boss, signal.SIGCONT)
    assert call.get(timeout=20) == 1


def test_where_nobody_can_restart_it_says_so(procs, spawn):
    owner = spawn().spawn("owner", Owner)
    with pytest.raises(Exception, match="guests: `supervise` needs processes that are spawned her"):
        owner.spawn_on.call_one(procs).get(timeout=20)
    with pytest.raises(TypeError, match="supervise=3 is none of elastic.restart"):
        procs.spawn("generators", Generator, supervise=3)


def test_actors_of_ones_own_process(mesh_runtime, spawn):
    own = this_proc().spawn("own", Generator, 5, supervise=OFTEN)
    assert own.generate.call_one().get(timeout=20) == 6
    own.fail.broadcast()
    try:
        found = own.generate.call_one().get(timeout=20)
    except SupervisionError:
        found = own.generate.call_one().get(timeout=20)
    assert found == 6
    own.stop().get(timeout=20)
    owner = spawn().spawn("owner", Owner)
    assert owner.beside_me.call_one().get(timeout=20) == [1, 1]


@pytest.mark.fault
def test_a_line_says_what_has_happened(program):
    ended = program(
        "import os, signal\n"
        "from monarch_nb import this_host, elastic\n"
        "from monarch_nb import SupervisionError as Lost\n"
        "from tests.meshes.generators import Generator\n"
        "procs = this_host().spawn_procs({'gpus': 2})\n"
        "made = procs.spawn('generators', Generator, supervise=elastic.restart())\n"
        "os.kill(made.pid.call().get().item(gpus=1), signal.SIGKILL)\n"
        "while True:\n"
        "    try:\n"
        "        print(made.slice(gpus=1).generate.call_one().get())\n"
        "        break\n"
        "    except Lost: pass\n"
    )
    assert ended.returncode == 0, ended.stderr
    assert "generators: rank 1 was killed by signal 9 (SIGKILL); restarted in" in ended.stderr
