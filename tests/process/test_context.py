"""Part A, context: who runs, where it was spawned, and where in the slice that was called."""

import logging
import os
import threading

import pytest

import monarch_nb.config
from monarch_nb import (
    Actor,
    Point,
    ProcId,
    concurrent_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    this_proc,
)
from tests import support

pytestmark = pytest.mark.usefixtures("mesh_runtime")


class Inner(Actor):
    @endpoint
    def describe(self):
        return describe()

    @endpoint
    def stop_myself(self):
        context().actor_instance.stop("had enough")
        return "stopping"

    @endpoint
    def abort_myself(self):
        context().actor_instance.abort("no way on")
        return "aborting"


class Outer(Actor):
    """Spawns another in its own process."""

    @endpoint
    def describe(self):
        return describe()

    @endpoint
    def in_a_thread(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(str(context().actor_instance)))
        thread.start()
        thread.join()
        return found[0]

    @endpoint
    def through_inner(self):
        inner = this_proc().spawn("inner", Inner)
        return inner.describe.call_one().get()

    @endpoint
    def own_process(self):
        instance = context().actor_instance
        here = instance.proc.spawn("beside", Inner).describe.call_one().get()
        return here["pid"] == os.getpid(), instance.proc.sizes

    @endpoint
    def on_its_mesh(self):
        instance = context().actor_instance
        others = instance.proc_mesh.spawn("everywhere", Inner)
        return instance.proc_mesh.sizes, len(
            {each["pid"] for _, each in others.describe.call().get()}
        )


class AsyncOuter(Actor):
    @concurrent_endpoint
    async def rank(self):
        return current_rank()


def describe():
    instance = context().actor_instance
    return {
        "name": instance.name,
        "class_name": instance.class_name,
        "text": str(instance),
        "rank": instance.rank,
        "creator": str(instance.creator),
        "actor_id": (instance.actor_id.actor_name, instance.actor_id.label),
        "same_process": instance.actor_id.proc_id == instance.proc_id,
        "address": str(instance.actor_id),
        "current_name": current_actor_name(),
        "message_rank": context().message_rank,
        "current_rank": current_rank(),
        "current_size": current_size(),
        "pid": os.getpid(),
    }


@pytest.fixture(scope="module")
def outers(procs):
    return procs.spawn("outer", Outer)


# --------------------------------------------------------------------------------------- the client


def test_the_client_is_the_root(mesh_runtime):
    instance = context().actor_instance
    assert (instance.name, str(instance)) == ("root", "<root>")
    assert context().message_rank == current_rank()
    assert dict(current_rank()) == current_size() == {}
    assert instance.proc.sizes == instance.proc_mesh.sizes == {}
    assert current_actor_name() == str(instance.actor_id)
    assert ProcId.from_string(instance.proc_id) == instance.actor_id.proc_id
    with pytest.raises(ValueError, match="is no process id"):
        ProcId.from_string("no id")


def test_any_thread_of_the_client_is_the_root(mesh_runtime):
    found = []
    thread = threading.Thread(target=lambda: found.append(context().actor_instance))
    thread.start()
    thread.join()
    assert found == [context().actor_instance]


# ----------------------------------------------------------------------------------------- an actor


def test_an_actor_knows_itself(outers):
    found = outers.describe.call().get().get(2)
    assert found["name"] == "outer"
    assert found["class_name"] == "tests.process.test_context.Outer"
    assert found["text"] == "<root>.<tests.process.test_context.Outer outer{'gpus': 2/4}>"
    assert found["creator"] == "<root>"
    assert found["actor_id"] == ("outer[2]", "outer")
    assert found["same_process"]
    assert found["current_name"] == found["address"]


def test_the_instance_s_rank_is_that_of_the_spawn_the_message_s_that_of_the_slice(outers):
    sliced = outers.slice(gpus=slice(1, 4, 2)).describe.call().get()
    assert [dict(each["rank"]) for _, each in sliced] == [{"gpus": 1}, {"gpus": 3}]
    assert [dict(each["message_rank"]) for _, each in sliced] == [{"gpus": 0}, {"gpus": 1}]
    assert [each["current_size"] for _, each in sliced] == [{"gpus": 2}] * 2
    assert str(sliced.get(1)["current_rank"]) == "{'gpus': 1/2}"


def test_points_of_ranks_are_points(outers):
    found = outers.describe.call().get().get(3)
    for name in ("rank", "message_rank", "current_rank"):
        assert isinstance(found[name], Point)
        assert found[name] == found["message_rank"]
    assert found["current_rank"].rank == 3


def test_a_singleton_slice_has_no_axes(outers):
    found = outers.slice(gpus=2).describe.call_one().get()
    assert dict(found["current_rank"]) == {}
    with pytest.raises(ValueError, match="Dimension 'gpus' not found"):
        found["current_rank"]["gpus"]
    assert found["rank"]["gpus"] == 2


def test_concurrent_endpoints_see_their_message(procs):
    ranks = procs.spawn("async", AsyncOuter).rank.call().get()
    assert [dict(rank) for _, rank in ranks] == [{"gpus": i} for i in range(4)]


def test_a_mesh_of_two_axes_reads_as_in_monarch(procs):
    mesh = procs.split(gpus=("hosts", "gpus"), hosts=1)
    found = mesh.spawn("grid", Outer).describe.call().get().get(1)
    assert str(found["current_rank"]) == "{'hosts': 0/1, 'gpus': 1/4}"


# ------------------------------------------------------------------------------------ owners' chain


def test_the_chain_of_owners(outers):
    found = outers.slice(gpus=1).through_inner.call_one().get()
    outer = "<root>.<tests.process.test_context.Outer outer{'gpus': 1/4}>"
    assert found["creator"] == outer
    assert found["text"] == f"{outer}.<tests.process.test_context.Inner inner{{}}>"


def test_a_thread_of_an_actor_is_the_rank_s_root(outers):
    assert outers.slice(gpus=0).in_a_thread.call_one().get() == "<root>"


def test_the_process_of_an_actor_is_a_mesh_of_one(outers):
    assert outers.slice(gpus=2).own_process.call_one().get() == (True, {})


def test_the_mesh_of_an_actor_is_the_one_it_was_spawned_on(procs, outers):
    assert outers.slice(gpus=0).on_its_mesh.call_one().get() == ({"gpus": 4}, 4)
    part = procs.slice(gpus=slice(1, 3)).spawn("part", Outer)
    assert part.slice(gpus=1).on_its_mesh.call_one().get() == ({"gpus": 2}, 2)
    assert part.slice(gpus=1).own_process.call_one().get() == (True, {})


# ------------------------------------------------------------------------- stopping from the inside


def test_an_actor_stops_itself_after_the_endpoint_that_runs(procs, failures):
    inner = procs.slice(gpus=3).spawn("inner", Inner)
    assert inner.stop_myself.call_one().get() == "stopping"
    error = inner.describe.call_one().exception()
    assert "has status stopped: had enough" in str(error)
    assert failures == []


def test_an_actor_that_aborts_itself_has_failed(procs, failures):
    inner = procs.slice(gpus=3).spawn("aborting", Inner)
    assert inner.abort_myself.call_one().get() == "aborting"
    support.eventually(lambda: failures)
    assert "no way on" in failures[0].report()
    assert failures[0].mesh_name == "aborting"


# ------------------------------------------------------------------------------------------ logging


class Logging(Actor):
    @endpoint
    def record(self, text, *args):
        return formatted(text, *args)

    @endpoint
    def switch_off(self):
        monarch_nb.config.prefix_python_logs_with_actor = False


def formatted(text, *args):
    """What a handler is given."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("tests.prefix")
    logger.addHandler(handler)
    logger.warning(text, *args)
    logger.removeHandler(handler)
    return records[0].getMessage()


def test_log_records_name_the_actor(procs):
    one = procs.slice(gpus=1).spawn("100% logging", Logging)
    name = "<root>.<tests.process.test_context.Logging 100% logging{}>"
    assert one.record.call_one("at %d%%", 50).get() == f"[actor={name}] at 50%"
    assert one.record.call_one("100%").get() == f"[actor={name}] 100%"
    one.switch_off.call_one().get()
    assert one.record.call_one("plain").get() == "plain"


def test_log_records_of_the_client(mesh_runtime, monkeypatch):
    this_proc()
    assert formatted("hello") == "[actor=<root>] hello"
    monkeypatch.setattr(monarch_nb.config, "prefix_python_logs_with_actor", False)
    assert formatted("hello") == "hello"


BEFORE_AND_AFTER = """
import logging
from monarch_nb import context, shutdown_context
assert logging.getLogRecordFactory() is logging.LogRecord
context()
logging.warning("with")
shutdown_context().get()
logging.warning("without")
"""


def test_without_a_client_records_are_left_alone(program):
    done = program(BEFORE_AND_AFTER)
    assert done.stderr == "WARNING:root:[actor=<root>] with\nWARNING:root:without\n"
