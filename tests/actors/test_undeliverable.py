"""`_handle_undeliverable_message`: what nobody got comes back to the actor that sent it, once."""

import os
import signal
import threading

import pytest

from monarch_nb import (
    Actor,
    Channel,
    SupervisionError,
    current_actor_name,
    endpoint,
    send,
    this_host,
    this_proc,
)
from monarch_nb.actors.undeliverable import Returns
from monarch_nb.process import current
from tests import inside, support
from tests.actors.fragile import Holding, only


def unproven():
    return len(current.part(Returns)._unproven)


class Worker(Holding):
    """What is sent to."""

    def __init__(self):
        self.done = 0

    @endpoint
    def step(self, n=1):
        self.done += n

    @endpoint
    def total(self):
        return self.done


class Owner(Actor):
    """Owns workers, so that the sender's handle is somebody else's and knows nothing."""

    @endpoint
    def spawn(self, procs):
        self.workers = procs.spawn("workers", Worker)
        self.beside = procs.spawn("beside", Worker)
        return self.workers

    @endpoint
    def dismiss(self):
        self.workers.stop("enough").get()

    @endpoint
    def begin_to_dismiss(self):
        """The request has come when what follows it on the same way is answered."""
        self.workers.stop("enough")
        self.beside.total.call().get()

    @endpoint
    def channel(self):
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def forget(self):
        del self.receiver

    def __supervise__(self, failure):
        return True


def sending(workers, how, count):
    if how == "broadcast":
        for _ in range(count):
            workers.step.broadcast()
    elif how == "send":
        for _ in range(count):
            send(workers.step, (), {})
    else:
        for n in range(count):
            workers.send(n)


class Sender(Actor):
    def __init__(self):
        self.came_back = []

    @endpoint
    def cast(self, workers, how="broadcast", count=1):
        sending(workers, how, count)

    @endpoint
    def call(self, workers):
        try:
            workers.step.call().get(5)
        except SupervisionError:
            return "told"

    @endpoint
    def send_with_port(self, workers):
        port, self.receiver = Channel.open()
        send(workers.step, (), {}, port)

    @endpoint
    def returned(self):
        return self.came_back

    @endpoint
    def unproven(self):
        return unproven()

    def _handle_undeliverable_message(self, envelope):
        where = current_actor_name(), threading.current_thread().name
        self.came_back.append((envelope, where))
        return True


class AsyncSender(Actor):
    def __init__(self):
        self.came_back = []

    @endpoint
    async def cast(self, workers, how="broadcast", count=1):
        sending(workers, how, count)

    @endpoint
    async def call(self, workers):
        try:
            await workers.step.call()
        except SupervisionError:
            return "told"

    @endpoint
    async def send_with_port(self, workers):
        port, self.receiver = Channel.open()
        send(workers.step, (), {}, port)

    @endpoint
    async def returned(self):
        return self.came_back

    @endpoint
    async def unproven(self):
        return unproven()

    async def _handle_undeliverable_message(self, envelope):
        where = current_actor_name(), threading.current_thread().name
        self.came_back.append((envelope, where))
        return True


class Careless(Sender):
    """Its hook does not want it."""

    def _handle_undeliverable_message(self, envelope):
        super()._handle_undeliverable_message(envelope)
        return False


class Strict(Sender):
    def _handle_undeliverable_message(self, envelope):
        raise LookupError("lost mail")


class Plain(Actor):
    """Has no hook."""

    @endpoint
    def cast(self, workers, how="broadcast", count=1):
        sending(workers, how, count)

    @endpoint
    def call(self, workers):
        return "unused"


SENDERS = [Sender, AsyncSender]


@pytest.fixture
def stage(spawn):
    """`sender(cls)`, an owner and the workers, in processes of their own."""
    crew = spawn({"gpus": 2}, name="crew")
    there = spawn({"gpus": 2}, name="there")
    owner = crew.slice(gpus=0).spawn("owner", Owner)
    workers = owner.spawn.call_one(there).get(10)
    workers.total.call().get(10)

    def sender(cls):
        return crew.slice(gpus=1).spawn("sender", cls)

    sender.owner, sender.workers = owner, workers
    return sender


def messages_back(sender, count):
    def enough():
        found = sender.returned.call_one().get(5)
        return found if len(found) >= count else None

    found = support.eventually(enough)
    assert len(found) == count, found
    return found


@pytest.mark.parametrize("how", ["broadcast", "send"])
@pytest.mark.parametrize("cls", SENDERS)
def test_to_an_actor_that_has_ended(stage, cls, how):
    sender = stage(cls)
    stage.owner.dismiss.call_one().get(5)
    sender.cast.call_one(stage.workers, how).get(5)
    found = messages_back(sender, 2)  # one per member
    for envelope, (actor, thread) in found:
        assert envelope.message == "workers.step"
        assert envelope.error == envelope.error_msg()
        assert "has status stopped: enough" in envelope.error
        assert str(envelope.sender()) == actor  # in its own context
        assert thread.startswith("monarch-actor")
        assert "workers.step to " in str(envelope)
    assert sorted(each.dest().partition("/")[2] for each, _ in found) == [
        "workers[0]",
        "workers[1]",
    ]


def test_what_was_queued_when_the_actor_stopped(stage, tmp_path):
    sender = stage(Sender)
    port, started = Channel.open()
    stage.workers.hold.broadcast(port, str(tmp_path / "go"))
    for _ in range(2):
        started.recv().get(5)
    sender.cast.call_one(stage.workers, "broadcast", 3).get(5)
    support.eventually(lambda: kept(sender) == 0)  # it has arrived
    stage.owner.begin_to_dismiss.call_one().get(5)
    (tmp_path / "go").touch()
    assert {each.message for each, _ in messages_back(sender, 6)} == {"workers.step"}


@pytest.mark.fault
@pytest.mark.parametrize("cls", SENDERS)
def test_to_a_process_that_has_died(stage, cls, failures):
    sender = stage(cls)
    victim, other = stage.workers.pid.call().get(5).values()
    support.stop(victim)  # nothing is read any more
    sender.cast.call_one(stage.workers, "broadcast", 3).get(5)
    os.kill(victim, signal.SIGKILL)
    found = [each for each, _ in messages_back(sender, 3)]
    assert {each.dest().partition("/")[2] for each in found} == {"workers[0]"}
    assert all("Killed(sig=9" in each.error for each in found)
    sender.cast.call_one(stage.workers).get(5)  # it is known to be dead by now
    assert "Killed(sig=9" in messages_back(sender, 4)[-1][0].error
    other_one = stage.workers.slice(gpus=1)
    support.eventually(lambda: other_one.total.call_one().get(5) == 4)
    assert only(failures).crashed_ranks == [0]
    assert victim != other


@pytest.mark.parametrize("cls", SENDERS)
def test_to_a_port_whose_receiver_is_gone(stage, cls):
    sender = stage(cls)
    port = stage.owner.channel.call_one().get(5)
    sender.cast.call_one(port, "port", 2).get(5)
    support.eventually(lambda: kept(sender) == 0)  # they have arrived
    stage.owner.forget.call_one().get(5)
    sender.cast.call_one(port, "port", 3).get(5)
    found = messages_back(sender, 3)
    assert {each.message for each, _ in found} == {"port"}
    assert found[0][0].dest() == "port {:x} of process {:016x}".format(*inside.address(port))
    assert "nobody receives there" in found[0][0].error


@pytest.mark.parametrize("cls", SENDERS)
def test_a_call_whose_future_fails_is_told_by_the_future_alone(stage, cls, failures):
    sender = stage(cls)
    stage.owner.dismiss.call_one().get(5)
    assert sender.call.call_one(stage.workers).get(5) == "told"
    sender.send_with_port.call_one(stage.workers).get(5)  # the port gets the error
    sender.cast.call_one(stage.workers).get(5)
    assert len(messages_back(sender, 2)) == 2
    assert not failures


@pytest.mark.fault
def test_a_send_whose_answer_will_never_come(stage, failures):
    sender = stage(Sender)
    victim = stage.workers.slice(gpus=0)
    os.kill(victim.pid.call_one().get(5), signal.SIGKILL)
    only(failures)
    sender.send_with_port.call_one(victim).get(5)
    assert "Killed(sig=9" in messages_back(sender, 1)[0][0].error


@pytest.mark.parametrize("cls", [Careless, Plain])
def test_false_or_no_hook_changes_nothing(stage, cls, failures):
    sender = stage(cls)
    stage.owner.dismiss.call_one().get(5)
    sender.cast.call_one(stage.workers).get(5)
    if cls is Careless:
        messages_back(sender, 2)
    assert sender.call.call_one(stage.workers).get(5)  # it lives
    assert not failures


def test_a_hook_that_raises_ends_the_actor(stage, failures):
    sender = stage(Strict)
    stage.owner.dismiss.call_one().get(5)
    sender.cast.call_one(stage.workers).get(5)
    failure = only(failures)
    assert failure.mesh_name == "sender"
    assert "workers.step to" in failure.event
    assert "LookupError('lost mail')" in failure.event
    assert isinstance(failure.cause, LookupError)


def test_within_one_process(mesh_runtime):
    owner, sender = this_proc().spawn("owner", Owner), this_proc().spawn("sender", Sender)
    workers = owner.spawn.call_one(this_proc()).get(5)
    owner.dismiss.call_one().get(5)
    send_from = this_host().spawn_procs({"gpus": 1})
    far = send_from.spawn("far", AsyncSender)
    for each in (sender, far):
        try:
            each.cast.call_one(workers).get(5)
        except SupervisionError:
            continue
        assert "stopped" in messages_back(each, 1)[0][0].error
    send_from.stop().get()


def test_what_arrives_does_not_come_back_and_is_not_kept(stage):
    sender = stage(Sender)
    sender.cast.call_one(stage.workers, "broadcast", 500).get(5)
    support.eventually(lambda: kept(sender) == 0)
    assert stage.workers.total.call().get(5).values() == [500, 500]
    assert sender.returned.call_one().get(5) == []


def kept(sender):
    return sender.unproven.call_one().get(5)
