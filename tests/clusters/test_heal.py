"""Hosts that are lost, and what takes their place: a spare, who offers the host again, another."""

import asyncio
import os
import signal
import sys
import threading
import time

import pytest

from monarch_nb import RankUnreachable, SupervisionError
from monarch_nb.control.client import client
from monarch_nb.control.jobs.status import Stage
from monarch_nb.job import SSHJob
from tests import inside
from tests.clusters.actors import Slow, Trainer, Where, names
from tests.clusters.offer import PORT
from tests.support import describe_process, eventually, listening_ports

pytestmark = [pytest.mark.slow, pytest.mark.fault]
OUTAGE_S = 3.0
ATTACH_S = 3.0
OFFER = [sys.executable, "-m", "tests.clusters.offer"]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What takes half a minute takes seconds here; nobody hears of failures."""
    monkeypatch.setenv("MONARCH_NB_OUTAGE_S", f"{OUTAGE_S:g}")
    monkeypatch.setenv("MONARCH_NB_ATTACH_S", f"{ATTACH_S:g}")
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)


@pytest.fixture
def told(monkeypatch):
    """The failures that nobody waits for."""
    found = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", found.append, raising=False)
    return found


def offer(*machines, gpus=""):
    environment = ["env", f"CUDA_VISIBLE_DEVICES={gpus}"]
    return [each.popen([*environment, *OFFER, at(each)]) for each in machines]


def at(machine):
    return f"tcp://{machine.address}:{PORT}"


def counts(actors):
    return list(actors.count.call().get(60).values())


def sums(procs, trainers):
    """What all ranks, and those along each axis, add up to."""
    return list(trainers.total.call(procs).get(60).values())


def lose(machine, procs, *ranks):
    """Cut a machine off for good, and wait until its ranks are lost."""
    machine.cut()
    until_lost(procs, *ranks)


def until_lost(procs, *ranks):
    eventually(lambda: inside.lost(procs) == list(ranks), 20, f"{ranks} are lost")


def listens(machine):
    places = (place for pid in machine.processes() for place in listening_ports(pid))
    return any(place.endswith(f" port {PORT}") for place in places)


def ours(machine, what):
    """Processes on a machine with this in their command line."""
    return [pid for pid in machine.processes() if what in describe_process(pid)]


def error_of(action):
    try:
        action()
    except BaseException as error:
        return error


def hosts_of(procs):
    """The names of the hosts of its ranks, as the live view has them."""

    def told():
        seen = client().snapshot()
        [mesh] = [each for each in seen.meshes if each.name == procs.name]
        names = [seen.hosts[rank.host].name for rank in mesh.ranks]
        return None if any(each.startswith("host ") for each in names) else names

    return eventually(told, 20, "the view knows the hosts of all ranks")


def test_a_spare_takes_the_place_of_a_host_and_survivors_keep_what_they_have(machines, attach):
    one, two, three, spare = machines(4)
    offer(one, two, three, spare)
    hosts = attach([one, two, three, spare], spares=1)
    assert hosts.sizes == {"hosts": 3}
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    where, trainers = procs.spawn("where", Where), procs.spawn("trainers", Trainer)
    part = where.slice(hosts=2)
    assert counts(where) == [1] * 6
    assert sums(procs, trainers) == [(6, 3, 2)] * 6
    asks = where.slice(hosts=0, gpus=0)
    assert asks.machine_of.call_one(part.slice(gpus=1)).get(20) == "node3"
    asks.keep.call_one(part.slice(gpus=0), procs.slice(hosts=2, gpus=0)).get(20)
    lose(three, procs, 4, 5)
    assert procs.heal() is procs
    assert names(where) == ["node1", "node1", "node2", "node2", "node4", "node4"]
    assert counts(where) == [2] * 4 + [1] * 2
    assert names(part) == ["node4", "node4"]
    assert asks.machine_of.call_one(part.slice(gpus=1)).get(20) == "node4"
    assert asks.ask_kept.call_one().get(60) == ("node4", "node4")
    assert sums(procs, trainers) == [(6, 3, 2)] * 6
    assert hosts_of(procs) == ["node1", "node1", "node2", "node2", "node4", "node4"]
    assert inside.state(procs).moves == [f"ranks 4-5 are on {at(spare)} now"]
    assert names(hosts.spawn_procs().spawn("more", Where)) == ["node1", "node2", "node4"]
    assert asks.machine_at.call_one(hosts.slice(hosts=2)).get(60) == "node4"


def test_without_a_spare_ranks_go_beside_others_and_home_when_that_host_is_lost(
    machines, attach, caplog
):
    """Twice in a row: the second loss takes ranks that were moved, and one host is there again."""
    one, two, three = machines(3)
    offer(one, two, three)
    procs = attach([one, two, three]).spawn_procs(per_host={"gpus": 2})
    where, trainers = procs.spawn("where", Where), procs.spawn("trainers", Trainer)
    assert counts(where) == [1] * 6
    lose(three, procs, 4, 5)
    where.heal()
    assert "ranks 4-5 are on" in caplog.text
    assert f"on {at(one)} now, beside ranks 0-1" in caplog.text
    assert names(where) == ["node1"] * 2 + ["node2"] * 2 + ["node1"] * 2
    assert counts(where) == [2] * 4 + [1] * 2
    assert sums(procs, trainers) == [(6, 3, 2)] * 6
    three.join()
    lose(one, procs, 0, 1, 4, 5)
    procs.heal()
    assert names(where) == ["node2"] * 4 + ["node3"] * 2
    assert counts(where) == [1] * 2 + [3] * 2 + [1] * 2
    assert sums(procs, trainers) == [(6, 3, 2)] * 6


def test_what_was_synced_is_where_ranks_come_to(machines, attach, tmp_path):
    one, two, spare = machines(3)
    folders = {each: tmp_path / each.name for each in (one, two, spare)}
    for each, folder in folders.items():
        each.popen(["env", f"WORKSPACE_DIR={folder}", "CUDA_VISIBLE_DEVICES=", *OFFER, at(each)])
    for name in ("library", "settings"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}_file.py").write_text("value = 7\n")
    procs = attach([one, two, spare], spares=1).spawn_procs()
    for name in ("library", "settings"):
        asyncio.run(procs.sync_workspace(tmp_path / name))
    assert not folders[spare].exists()
    (tmp_path / "library/library_file.py").write_text("value = 8\n")  # as it is at the heal
    lose(two, procs, 1)
    procs.heal()
    assert (folders[spare] / "library/library_file.py").read_text() == "value = 8\n"
    assert (folders[spare] / "settings/settings_file.py").read_text() == "value = 7\n"
    where = procs.spawn("where", Where)
    assert names(where) == ["node1", "node3"]
    assert where.imports.call("library_file").get(20).values() == [
        f"{folders[each]}/library/library_file.py" for each in (one, spare)
    ]


def test_ranks_that_are_all_on_one_host_now_meet(machines, attach):
    one, two = machines(2)
    _, killed = offer(one, two)
    procs = attach([one, two]).spawn_procs(per_host={"gpus": 2})
    where, trainers = procs.spawn("where", Where), procs.spawn("trainers", Trainer)
    assert sums(procs, trainers) == [(4, 2, 2)] * 4
    killed.kill()
    until_lost(procs, 2, 3)
    procs.heal()
    assert names(where) == ["node1"] * 4
    assert where.variable.call("GLOO_SOCKET_IFNAME").get(20).values() == ["eth0"] * 4
    assert sums(procs, trainers) == [(4, 2, 2)] * 4


def test_a_worker_that_was_killed_and_offers_its_host_again_is_used(machines, attach):
    """Also for a second mesh of the same host, and for who was told of the first."""
    one, two = machines(2)
    _, killed = offer(one, two)
    hosts = attach([one, two])
    procs = hosts.spawn_procs(per_host={"gpus": 2}, name="first")
    second = hosts.slice(hosts=1).spawn_procs(name="second")
    where, other = procs.spawn("where", Where), second.spawn("other", Where)
    assert counts(where) == [1] * 4
    assert counts(other) == [1]
    before = inside.processes(procs)
    killed.kill()
    until_lost(procs, 2, 3)
    with pytest.raises(RankUnreachable, match="Bring the lost back: mesh.heal"):
        names(where)
    two.assert_idle()
    offer(two)
    procs.heal()
    second.heal()
    assert names(where) == ["node1", "node1", "node2", "node2"]
    assert counts(where) == [2, 2, 1, 1]
    assert names(other) == ["node2"]
    assert inside.processes(procs)[0] >> 48 == before[0] >> 48
    new = {each >> 48 for each in inside.processes(procs)[2:]}
    assert len(new | {inside.processes(second)[0] >> 48, before[2] >> 48}) == 2
    hosts.shutdown().get(20)
    for each in (one, two):
        each.assert_idle()


def test_a_host_that_was_cut_off_for_too_long_joins_again(machines, attach):
    """Its ranks have ended by themselves; the worker goes on, and has not to be started again."""
    one, two = machines(2)
    _, worker = offer(one, two)
    procs = attach([one, two]).spawn_procs()
    where = procs.spawn("where", Where)
    assert counts(where) == [1, 1]
    with two.cut_off():
        until_lost(procs, 1)
        two.assert_idle(but=set(ours(two, "tests.clusters.offer")), within_s=20)
    assert worker.poll() is None
    procs.heal()
    assert names(where) == ["node1", "node2"]
    assert counts(where) == [2, 1]


def test_an_agent_that_is_killed_takes_its_host_which_joins_again(machines, attach):
    one, two = machines(2)
    offer(one, two)
    procs = attach([one, two]).spawn_procs()
    where = procs.spawn("where", Where)
    assert counts(where) == [1, 1]
    [agent] = ours(two, "host.agent")
    os.kill(agent, signal.SIGKILL)
    until_lost(procs, 1)
    with pytest.raises(RankUnreachable, match="its agent was ended by SIGKILL"):
        where.slice(hosts=1).machine.call_one().get(20)
    procs.heal()
    assert names(where) == ["node1", "node2"]
    assert counts(where) == [2, 1]


def test_where_no_host_is_left_it_is_said_and_a_later_heal_works(machines, attach):
    one, two = machines(2)
    workers = offer(one, two)
    procs = attach([one, two]).spawn_procs()
    where = procs.spawn("where", Where)
    names(where)
    for each in workers:
        each.kill()
    until_lost(procs, 0, 1)
    began = time.monotonic()
    with pytest.raises(SupervisionError) as refused:
        procs.heal()
    assert time.monotonic() - began < ATTACH_S + 3
    assert refused.value.ranks == (0, 1)
    said = str(refused.value)
    for each in (one, two):
        assert f"{at(each)}: its worker has ended" in said
    assert "asked again: " in said
    assert f"no answer within {ATTACH_S:g} s" in said
    assert "A worker that offers its host there again will be used" in said
    assert "shrink" not in said, "nothing is left to go on with"
    two.assert_idle()
    offer(two)
    eventually(lambda: listens(two), 20)
    procs.heal()
    assert names(where) == ["node2", "node2"]


def test_a_heal_waits_while_a_host_cannot_be_heard(machines, attach, caplog):
    one, two = machines(2)
    offer(one, two)
    procs = attach([one, two]).spawn_procs()
    where = procs.spawn("where", Where)
    assert counts(where) == [1, 1]
    pids = where.pid.call().get(20).values()
    with two.cut_off():
        eventually(lambda: "silent ranks [1]" in repr(procs), 20)
        healing = threading.Thread(target=procs.heal)
        healing.start()
        eventually(lambda: "the heal waits" in caplog.text)
        assert healing.is_alive()
    healing.join(10)
    assert not healing.is_alive()
    assert where.pid.call().get(20).values() == pids, "it came back: nothing was replaced"
    assert counts(where) == [2, 2]


def test_a_spare_that_is_lost_is_no_failure_and_the_next_is_used(machines, attach, caplog, told):
    one, two, three, four = machines(4)
    offer(one, two, three, four)
    procs = attach([one, two, three, four], spares=2).spawn_procs()
    where = procs.spawn("where", Where)
    assert counts(where) == [1, 1]
    three.lose_power()
    eventually(lambda: "a spare host is lost" in caplog.text, 20)
    assert at(three) in caplog.text
    assert counts(where) == [2, 2]
    assert told == []
    lose(two, procs, 1)
    procs.heal()
    assert names(where) == ["node1", "node4"]
    assert [each.crashed_ranks for each in told] == [[1]]


def test_a_replacement_that_dies_in_the_heal_is_told_and_the_next_heal_works(
    machines, attach, tmp_path
):
    one, two, three = machines(3)
    offer(one, two, three)
    procs = attach([one, two, three], spares=1).spawn_procs()
    where = procs.spawn("where", Where)
    slow = procs.spawn("slow", Slow, str(tmp_path))
    assert counts(where) == [1, 1]
    lose(two, procs, 1)
    (tmp_path / "wait").touch()
    errors = []
    healing = threading.Thread(target=lambda: errors.append(error_of(procs.heal)))
    healing.start()
    eventually((tmp_path / "node3").exists, 20, "it constructs on the spare")
    three.lose_power()
    healing.join(20)
    (tmp_path / "wait").unlink()
    assert isinstance(errors[0], RankUnreachable)
    assert at(three) in str(errors[0])
    until_lost(procs, 1)
    procs.heal()
    assert names(where) == ["node1", "node1"]
    assert names(slow) == ["node1", "node1"]
    assert counts(where) == [2, 1]


def test_ranks_with_gpus_share_none(machines, attach):
    """Of devices that are not there: hosts count what their environment names."""
    one, two = machines(2)
    offer(one, two, gpus="0,1,2")
    hosts = attach([one, two])
    few = hosts.spawn_procs(per_host={"gpus": 1}, name="few")
    many = hosts.spawn_procs(per_host={"gpus": 2}, name="many")
    names(many.spawn("where", Where))
    lose(two, few, 1)
    until_lost(many, 2, 3)
    few.heal()
    assert [inside.state(few).seat(rank).slot for rank in range(2)] == [0, 1]
    with pytest.raises(SupervisionError, match=f"{at(one)} has no GPU free for rank 3") as refused:
        many.heal()
    assert f"{at(two)}: nothing was heard of it" in str(refused.value)
    assert "mesh.heal(shrink=True)" in str(refused.value)


@pytest.mark.nightly
def test_a_job_of_ssh_uses_its_spare_and_logs_in_again(machines, sshd, attach):
    one, two, three = machines(3, home=True)
    servers = sshd([one, two, three])
    job = SSHJob(sys.executable, ["-F", str(servers.config), "-o", "ControlPath=none"])
    job.add_mesh("trainers", [each.name for each in (one, two, three)], spares=1)
    hosts = job.state(cached_path=None).trainers
    procs = hosts.spawn_procs()
    where = procs.spawn("where", Where)
    assert names(where) == ["node1", "node2"]
    [joined] = ours(two, "host.join")
    os.kill(joined, signal.SIGKILL)
    until_lost(procs, 1)
    procs.heal()
    assert names(where) == ["node1", "node3"]
    [joined] = ours(three, "host.join")
    os.kill(joined, signal.SIGKILL)
    until_lost(procs, 1)
    procs.heal()
    found = names(where)
    assert found[0] == "node1"
    assert found[1] in ("node2", "node3")
    assert counts(where) == [1, 1]
    assert names(hosts.spawn_procs().spawn("more", Where)) == found
    job.kill()
    for each in (one, two, three):
        eventually(lambda each=each: not ours(each, "monarch_nb"), 10)


def test_a_host_that_ssh_cannot_start_again_is_no_end_of_the_job(machines, sshd, attach, tmp_path):
    one, two = machines(2, home=True)
    servers = sshd([one, two])
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    job = SSHJob(str(python), ["-F", str(servers.config), "-o", "ControlPath=none"])
    job.add_mesh("trainers", [one.name, two.name])
    procs = job.state(cached_path=None).trainers.spawn_procs()
    where = procs.spawn("where", Where)
    assert names(where) == ["node1", "node2"]
    python.write_text("#!/bin/sh\necho no luck >&2; exit 3\n")
    [joined] = ours(two, "host.join")
    os.kill(joined, signal.SIGKILL)
    until_lost(procs, 1)
    procs.heal()
    assert names(where) == ["node1", "node1"]
    status = job.status()
    assert status[1:4] == (Stage.UP, 1, 2)
    assert "node2 did not join: ssh ended with code 3\nno luck" in status.reason
    job.kill()
