"""A controller that reaches hosts through others: over real sockets, each host with its gateway."""

import threading
from collections import Counter

import pytest

from monarch_nb.core.casting import Cast, Run, runs_of
from monarch_nb.core.reply_folding import unfold
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import Timing
from monarch_nb.net.links import Links
from monarch_nb.net.loop import LoopThread
from tests.support import eventually

TIMING = Timing(pulse_s=0.1, silent_s=0.5, outage_s=5.0)
PORT = 7


class Host:
    """A run dir, its gateway, and processes that answer what is asked of them."""

    def __init__(self, number: int, fan_out: int, processes: int = 2) -> None:
        self.number = number
        self.dir = new_run_dir()
        self.thread = LoopThread("gateway")
        self.lost = []
        self.gateway = Gateway(
            self.dir.path,
            number,
            self.thread.loop,
            TIMING,
            on_lost=lambda host, why, _: self.lost.append((host, why)),
            fan_out=fan_out,
        )
        self.processes = [number << HOST_SHIFT | 1 + each for each in range(processes)]
        self.got = {each: [] for each in self.processes}  # tags, in the order in which they came
        self.answers = []  # (tag, process) of each answer
        self.links = [Links(self.dir.path, each, self._taker(each)) for each in self.processes]
        for each in self.links:
            each.start()

    @property
    def first(self) -> int:
        return self.processes[0]

    def _taker(self, process):
        def take(message):
            if message.kind == frames.FOLD:
                port, groups = unfold(message.payload)
                for group in groups:
                    members = [member for run in group.runs for member in run.members()]
                    self.answers.extend((port, member) for member, _ in members)
            elif message.kind == frames.REPLY:
                self.answers.append((message.port, message.source))
            else:
                self.got[process].append(message.tag)
                if message.reply:
                    answer = HEADER.pack(
                        frames.REPLY, 0, 0, message.rank, 0, message.reply, process, 0
                    )
                    mine = self.links[self.processes.index(process)]
                    mine.outbox(message.source).send(answer + b"None")

        return take

    def listen(self) -> str:
        listener = wire.listen_for_hosts("tcp://127.0.0.1:*")
        self.thread.loop.call(lambda: self.gateway.listen(listener))
        return wire.listens_at(listener)

    def send(self, process: int, tag: int, reply: int = 0) -> None:
        header = HEADER.pack(frames.CALL, 0, 0, 0, tag, PORT, self.first, reply)
        self.links[0].outbox(process).send(header)

    def cast(self, runs: list[Run], tag: int, reply: int = 0, payload: bytes = b"") -> None:
        header = HEADER.pack(frames.CALL, 0, 0, 0, tag, PORT, self.first, reply)
        self.links[0].cast(Cast(runs, [header + payload]))

    def through(self, host: int) -> int | None:
        found = [each.through for each in self.gateway.links if each.host == host]
        return found[0] if found else None

    def close(self) -> None:
        for each in self.links:
            each.close()
        self.gateway.close()
        self.thread.close()
        self.dir.remove()


class Tree:
    """A controller, and hosts that it has linked."""

    def __init__(self, count: int, fan_out: int, dials: bool, between=None) -> None:
        self.controller = Host(1, fan_out, processes=1)
        self.hosts = [Host(number, fan_out) for number in range(2, 2 + count)]
        self.processes = [each for host in self.hosts for each in host.processes]
        self.runs = runs_of((each, rank) for rank, each in enumerate(self.processes))
        address = "" if dials else self.controller.listen()
        if between is not None and address:
            address = between.in_front_of(address)
        for host in self.hosts:
            self._link(host, address)

    def _link(self, host: Host, address: str) -> None:
        controller, secret, at = self.controller, Secret.new(), host.listen()
        dial = [address] if address else []
        host.thread.loop.call(lambda: host.gateway.serve(1, secret, dial))
        controller.thread.loop.call(
            lambda: controller.gateway.link(host.number, secret, [at], [] if address else [at])
        )

    def until_grown(self, roots: int) -> None:
        """Wait until the controller has connections to so many hosts at most."""

        def connected():
            return [
                each.number for each in self.living if self.controller.through(each.number) is None
            ]

        eventually(lambda: len(connected()) <= roots, what=lambda: f"connected: {connected()}")

    @property
    def living(self) -> list[Host]:
        gone = {host for host, _ in self.controller.lost}
        return [each for each in self.hosts if each.number not in gone]

    def expect(self, tags: list[int], replies: list[int], hosts=None) -> None:
        """Wait until all processes have got these in this order, and their answers have come."""
        hosts = self.hosts if hosts is None else hosts
        processes = [each for host in hosts for each in host.processes]
        wanted = Counter((reply, process) for reply in replies for process in processes)
        eventually(
            lambda: Counter(self.controller.answers) == wanted,
            what=lambda: f"missing: {wanted - Counter(self.controller.answers)}",
        )
        for host in hosts:
            for process in host.processes:
                assert host.got[process] == tags

    def close(self) -> None:
        for each in [*self.hosts, self.controller]:
            each.close()


@pytest.fixture
def plant():
    made = []

    def make(*args, **kwargs):
        made.append(Tree(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("dials", [True, False], ids=["it dials", "hosts dial"])
@pytest.mark.parametrize("count, fan_out", [(6, 2), (4, 1)], ids=["a tree", "a chain"])
def test_hosts_go_under_others_while_messages_are_on_their_way(plant, count, fan_out, dials):
    tree = plant(count, fan_out, dials)
    tags, replies = [], []
    number = 0

    def say_some():
        nonlocal number
        for _ in range(10):
            number += 1
            tags.append(number)
            replies.append(number + 1000)
            if number % 3:
                tree.controller.cast(tree.runs, number, number + 1000)
            else:
                for each in tree.processes:
                    tree.controller.send(each, number, number + 1000)

    say_some()
    for _ in range(20):
        say_some()
        threading.Event().wait(0.05)
    tree.until_grown(fan_out)
    say_some()
    tree.expect(tags, replies)


@pytest.mark.parametrize("dials", [True, False], ids=["it dials", "hosts dial"])
@pytest.mark.parametrize("how", ["dies", "freezes"])
def test_hosts_under_one_that_is_lost_lose_nothing(plant, dials, how):
    tree = plant(7, 2, dials)
    tree.until_grown(2)
    tree.controller.cast(tree.runs, 1, 1001)
    tree.expect([1], [1001])
    carries = next(host for host in tree.hosts if tree.controller.through(host.number) is not None)
    top = next(
        host for host in tree.hosts if host.number == tree.controller.through(carries.number)
    )
    others = [host for host in tree.hosts if host is not top]
    runs = runs_of(
        (each, rank) for rank, each in enumerate(tree.processes) if each not in top.processes
    )
    released = threading.Event()
    if how == "dies":
        top.thread.loop.call(top.gateway.sever)
    else:
        top.thread.loop.soon(lambda: released.wait(60))
    try:
        tags, replies = [1], [1001]
        for number in range(2, 202):
            tree.controller.cast(runs, number, number + 1000)
            tags.append(number)
            replies.append(number + 1000)
        tree.controller.answers = [
            each for each in tree.controller.answers if each[1] not in top.processes
        ]
        tree.expect(tags, replies, others)
        eventually(lambda: [host for host, _ in tree.controller.lost] == [top.number])
        tree.until_grown(2)
        tree.controller.cast(runs, 202, 1202)
        tree.expect([*tags, 202], [*replies, 1202], others)
        assert not any(host.lost for host in others)
    finally:
        released.set()


@pytest.mark.parametrize("dials", [True, False], ids=["it dials", "hosts dial"])
def test_a_host_that_leaves_is_lost_at_once_and_with_its_words(plant, dials):
    tree = plant(3, 1, dials)
    tree.until_grown(1)
    last = tree.hosts[-1]
    last.thread.loop.call(lambda: last.gateway.leave_controller("its disk is full"))
    eventually(lambda: tree.controller.lost == [(last.number, "its disk is full")], 1.0)


@pytest.mark.parametrize("dials", [True, False], ids=["it dials", "hosts dial"])
def test_a_host_that_leaves_as_its_way_changes_is_lost_with_its_words(plant, dials):
    for _ in range(3):
        tree = plant(2, 1, dials)
        last = tree.hosts[-1]
        while tree.controller.through(last.number) is None:
            pass  # the controller has just gone over to the tunnel, and the host does not know yet
        last.thread.loop.call(lambda host=last: host.gateway.leave_controller("its disk is full"))
        eventually(
            lambda host=last, tree=tree: tree.controller.lost == [(host.number, "its disk is full")]
        )


@pytest.mark.parametrize("dials", [True, False], ids=["it dials", "hosts dial"])
def test_all_hosts_hear_at_once_that_the_controller_leaves(plant, dials):
    tree = plant(5, 2, dials)
    tree.until_grown(2)
    tree.controller.gateway.close()
    eventually(lambda: all(host.lost == [(1, "it was ended")] for host in tree.hosts), 1.0)


@pytest.mark.parametrize("dials", [True, False], ids=["it dials", "hosts dial"])
def test_hosts_end_soon_when_the_controller_dies(plant, dials):
    tree = plant(5, 2, dials)
    tree.until_grown(2)
    tree.controller.thread.loop.call(tree.controller.gateway.sever)
    eventually(lambda: all(host.lost for host in tree.hosts), 2 * TIMING.outage_s)


def test_long_messages_cross_each_link_once_and_whole(plant):
    tree = plant(6, 2, dials=True)
    tree.until_grown(2)
    for number in range(3):
        tree.controller.cast(tree.runs, number, number + 1000, bytes(3 << 20))
        tree.controller.cast(tree.runs, number + 10, number + 1010)
    tags = [0, 10, 1, 11, 2, 12]
    tree.expect(tags, [each + 1000 for each in tags])
