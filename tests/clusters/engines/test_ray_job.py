"""Hosts from a real Ray cluster of two nodes: they come, compute, wait, are lost, leave nothing.

Programs are processes of their own, as a driver of Ray leaves threads and files in its process.
"""

import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from monarch_nb.host import rundir
from tests.clusters.engines.ray_cluster import RayCluster
from tests.support import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not find_spec("ray"), reason="no Ray: pip install monarch_nb[ray]"),
]

BEGIN = """
    import json, signal, sys, time
    import monarch_nb
    from monarch_nb.job import RayJob
    from tests.clusters.actors import Where
    from tests.support import eventually

    def say(**facts):
        print(json.dumps(facts), flush=True)

    def status(job):
        found = job.status()
        return [found.stage.value, found.joined, found.hosts, found.reason]
"""


def start(cluster: RayCluster, program: str, **options) -> subprocess.Popen:
    text = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    command = [sys.executable, "-c", text]
    return subprocess.Popen(command, env=cluster.env, stdout=subprocess.PIPE, text=True, **options)


def run(cluster: RayCluster, program: str) -> dict[str, object]:
    """Return what a program has said in its lines, all together."""
    process = start(cluster, program)
    out, _ = process.communicate(timeout=150)
    assert process.returncode == 0, out
    return {key: value for line in out.splitlines() for key, value in json.loads(line).items()}


def test_hosts_come_train_together_and_go(cluster, no_host_stays):
    said = run(
        cluster,
        """
        def train(rank):
            import torch
            import torch.distributed as dist
            dist.init_process_group("gloo")
            sum = torch.tensor([rank + 1.0])
            dist.all_reduce(sum)
            dist.destroy_process_group()
            return sum.item()

        from monarch_nb import Actor, current_rank, endpoint
        from monarch_nb.spmd import setup_torch_elastic_env

        class Trainer(Actor):
            @endpoint
            def train(self):
                return train(current_rank().rank)

        end = signal.getsignal(signal.SIGTERM)
        job = RayJob({"trainers": 2}, resources={"seat": 1}, env={"FROM_THE_JOB": "yes"})
        hosts = job.state(cached_path=None).trainers
        hosts.initialized.get(90)
        say(up=status(job), sizes=dict(hosts.sizes))
        say(ours=signal.getsignal(signal.SIGTERM) is end or end is signal.SIG_DFL)
        procs = hosts.spawn_procs(per_host={"gpus": 2})
        where = procs.spawn("where", Where)
        say(variable=where.variable.call("FROM_THE_JOB").get(60).values())
        setup_torch_elastic_env(procs)
        say(sums=procs.spawn("trainer", Trainer).train.call().get(60).values())
        job.kill()
        say(gone=status(job)[0], active=job.active)
        """,
    )
    assert said["up"] == ["up", 2, 2, ""]
    assert said["sizes"] == {"hosts": 2}
    assert said["variable"] == ["yes"] * 4
    assert said["sums"] == [10.0] * 4, "one process group across the nodes"
    assert (said["gone"], said["active"], said["ours"]) == ("gone", False, True)


@pytest.mark.nightly
def test_what_cannot_be_had_is_queued_with_the_reason_and_can_be_cancelled(cluster, no_host_stays):
    said = run(
        cluster,
        """
        import ray
        from ray.util.placement_group import placement_group_table

        job = RayJob({"trainers": 2}, num_gpus=8, resources={"seat": 1})
        hosts = job.state(cached_path=None).trainers
        say(queued=status(job))
        job.kill()
        try:
            hosts.initialized.get(20)
        except RuntimeError as error:
            say(error=str(error))
        groups = lambda: [each["state"] for each in placement_group_table().values()]
        eventually(lambda: set(groups()) <= {"REMOVED"}, 20)
        say(free=ray.available_resources()["seat"])
        """,
    )
    stage, joined, hosts, reason = said["queued"]
    assert (stage, joined, hosts) == ("queued", 0, 2)
    assert reason.startswith("each host wants 1 CPU, 8 GPU, 1 seat: 0 of 2 nodes have that")
    assert "0 GPU are free, 16 are wanted" in reason
    assert said["error"] == "trainers[0] did not join: the job was ended"
    assert said["free"] == 2, "nothing is held"


@pytest.mark.nightly
@pytest.mark.fault
def test_a_host_whose_actor_was_killed_is_lost_and_the_other_goes_on(cluster, no_host_stays):
    said = run(
        cluster,
        """
        import ray
        from ray.util.state import list_actors

        told = []
        monarch_nb.unhandled_fault_hook = told.append
        job = RayJob({"trainers": 2}, resources={"seat": 1})
        where = job.state(cached_path=None).trainers.spawn_procs().spawn("where", Where)
        where.machine.call().get(90)
        [placed] = job._job_placed
        ray.kill(next(iter(placed._actors.values())))
        eventually(lambda: told, 20)
        say(crashed=told[0].crashed_ranks, fault=str(told[0]))
        say(alive=len(where.slice(hosts=1).machine.call_one().get(20)) > 0)
        eventually(lambda: status(job)[3], 20)
        say(status=status(job))
        job.kill()
        """,
    )
    assert said["crashed"] == [0]
    assert "trainers[0]" in said["fault"]
    assert said["alive"]
    stage, joined, hosts, reason = said["status"]
    assert (stage, joined, hosts) == ("up", 1, 2)
    assert "it was killed by `ray.kill`" in reason


@pytest.mark.nightly
@pytest.mark.fault
def test_a_spare_takes_the_place_of_a_lost_host_then_its_bundle_has_a_new_one(
    cluster, no_host_stays
):
    said = run(
        cluster,
        """
        import ray
        from tests import inside

        monarch_nb.unhandled_fault_hook = lambda _: None
        job = RayJob({"trainers": 1}, resources={"seat": 1}, spares=1)
        hosts = job.state(cached_path=None).trainers
        procs = hosts.spawn_procs()
        where = procs.spawn("where", Where)
        say(sizes=dict(hosts.sizes), first=where.count.call().get(90).values())
        eventually(lambda: status(job)[1] == 2, 60)
        [placed] = job._job_placed
        def lose():
            ray.kill(placed._actors[inside.state(procs).agents[0] >> 48])
            eventually(lambda: inside.lost(procs) == [0], 20)
            procs.heal()
        lose()
        say(second=where.count.call().get(60).values(), moves=inside.state(procs).moves)
        lose()
        say(third=where.count.call().get(60).values())
        eventually(lambda: status(job)[:3] == ["up", 2, 2], 60)
        job.kill()
        say(over=True)
        """,
    )
    assert said["sizes"] == {"hosts": 1}
    assert said["moves"] == ["rank 0 is on trainers[1] now"]
    assert [said["first"], said["second"], said["third"]] == [[1], [1], [1]]
    assert said["over"]


@pytest.mark.nightly
def test_more_hosts_are_a_group_of_their_own_which_goes_with_them(cluster, no_host_stays):
    said = run(
        cluster,
        """
        import ray

        job = RayJob({"trainers": 1}, resources={"seat": 1})
        procs = job.state(cached_path=None).trainers.spawn_procs()
        where = procs.spawn("where", Where)
        say(first=where.count.call().get(90).values())
        more = job.scale("trainers", 2)
        procs = procs.resize(more)
        procs.initialized.get(60)
        say(two=status(job)[:3], kept=where.count.call().get(60).values())
        say(all=procs.spawn("all", Where).count.call().get(60).values())
        procs = procs.resize(more.slice(hosts=slice(1)))
        job.scale("trainers", 1)
        eventually(lambda: ray.available_resources().get("seat") == 1, 20)
        say(one=status(job)[:3], again=where.count.call().get(60).values())
        job.kill()
        """,
    )
    assert said["two"] == ["up", 2, 2]
    assert said["one"] == ["up", 1, 1]
    assert (said["first"], said["kept"], said["again"]) == ([1], [2], [3])
    assert said["all"] == [1, 1]


@pytest.mark.nightly
@pytest.mark.fault
def test_a_controller_that_was_killed_leaves_nothing_on_the_nodes(cluster, no_host_stays):
    program = """
        job = RayJob({"trainers": 2}, resources={"seat": 1})
        job.state(cached_path=None).trainers.initialized.get(90)
        say(ready=True)
        signal.pause()
    """
    controller = start(cluster, program)
    with controller.stdout as out:
        assert out.readline() == '{"ready": true}\n'
        assert cluster.hosts()
        controller.kill()
    controller.wait()
    eventually(lambda: not cluster.hosts(), 20)
    free = run(
        cluster,
        """
        import os, ray
        ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
        eventually(lambda: ray.available_resources().get("seat") == 2, 30)
        say(free=2)
        """,
    )
    assert free == {"free": 2}
    rundir.sweep_all()  # a process that was killed leaves its folder to the next one to start
