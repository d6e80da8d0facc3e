"""Where acts play: a kernel with two meshes, a ledger of what has run, and the seeded dice.

`main` has the ranks that acts kill, stop and interrupt. `steady` is never touched by faults, so
what its actor has counted is known at any time, and its processes live as long as the kernel.
"""

import json
import os
import random
import re
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests import support
from tests.kernel.client import Cell, KernelClient
from tests.soak.world import World

RANKS = range(4)
STEADY = range(2)
DEADLINE_S = 90.0  # of a cell; ten times what the slowest takes
KEPT_NOTES = 40
_LOST = re.compile(r"^ranks? ([\d,-]+)(?:: the process| of main)", re.MULTILINE)

ACTORS = """
import asyncio, json, os, time
import numpy
from monarch_nb import Actor, Channel, RDMABuffer, attach_to_workers, current_rank
from monarch_nb import elastic, endpoint
{torch}

def mark(path, token, rank):
    with open(path, "a") as ledger:
        ledger.write(f"{{token}} {{rank}}\\n")

class Work(Actor):
    def __init__(self, path):
        self.path, self.rank, self.total = path, current_rank().rank, 0
    @endpoint
    def add(self, token, n):
        mark(self.path, token, self.rank)
        self.total += n
        return self.total
    @endpoint
    def fails(self, ranks):
        if self.rank in ranks:
            raise ValueError(f"slip of {{self.rank}}")
        return self.rank
    @endpoint
    def dies(self, ranks):
        if self.rank in ranks:
            os._exit(3)
        time.sleep(0.02)
        return self.rank
    @endpoint
    def echo(self, value):
        return value
    @endpoint
    def sends(self, port):
        port.send(self.rank)
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def waits(self, token):
        mark(self.path, token, self.rank)
        for _ in range(600):
            time.sleep(0.1)
    @endpoint
    def offer(self, size, value):
        self.memory = numpy.full(size, value, dtype=numpy.uint8)
        self.buffer = RDMABuffer(memoryview(self.memory))
        return self.buffer
    @endpoint
    def use(self, buffer, size):
        room = numpy.zeros(size, dtype=numpy.uint8)
        buffer.read_into(memoryview(room)).get()
        buffer.write_from(memoryview(room + 1)).get()
        return int(room.sum(dtype=int))
    @endpoint
    def held(self):
        return int(self.memory.sum(dtype=int))
    @endpoint
    def drop(self):
        self.buffer.drop().get()
        self.memory = None

class Async(Actor):
    def __init__(self, path):
        self.path, self.rank = path, current_rank().rank
    @endpoint
    async def add(self, token, n):
        await asyncio.sleep(0.01)
        mark(self.path, token, self.rank)
        return n + self.rank
"""
TORCH = "import torch\nfrom monarch_nb.tensor import inspect"


class Stage:
    """What acts are given."""

    def __init__(self, world: World, seed: int, *, has_torch: bool) -> None:
        self.world = world
        self.seed = seed
        self.dice = random.Random(seed)
        self.has_torch = has_torch
        self.ledger = Ledger(world.path / "ledger")
        self.notes: deque[str] = deque(maxlen=KEPT_NOTES)
        self.kernel = KernelClient("monarch")
        self.counted = 0  # of the actors of `steady`
        self.made = 0
        self.cells = 0

    def begin(self) -> None:
        """Start the kernel and what stands for the whole time."""
        self.kernel.__enter__()
        for name, ranks in (("main", RANKS), ("steady", STEADY)):
            told = self.ok(f"%mesh up --gpus {len(ranks)} --name {name} --new").text()
            assert f"{name} is up: {len(ranks)} ranks" in told, told
        self.ok(ACTORS.format(torch=TORCH if self.has_torch else ""))
        for name, kind in (("steady_work", "Work"), ("steady_async", "Async")):
            self.ok(f"{name} = steady.spawn({name!r}, {kind}, {self.ledger.name!r})")

    def end(self) -> None:
        """End it in the orderly way; it has to, by itself."""
        end_kernel(self.kernel)
        self.world.end_workers()

    def abandon(self) -> None:
        """End it with force: something has failed."""
        if self.kernel.manager.has_kernel:
            kill_kernel(self.kernel)

    def note(self, text: str) -> None:
        """Remember what was done, for the report of a failure."""
        self.notes.append(text)

    def new(self, what: str) -> str:
        """Return a name that was never used."""
        self.made += 1
        return f"{what}{self.made}"

    def some(self, ranks: Iterable[int] = RANKS, most: int = 3) -> list[int]:
        """Choose some of them, at least one."""
        ranks = list(ranks)
        return sorted(self.dice.sample(ranks, self.dice.randint(1, min(most, len(ranks)))))

    # ------------------------------------------------------------------------------------- cells

    def start(self, code: str, **options: Any) -> Cell:
        self.cells += 1
        return self.kernel.start(code, **options)

    def run(self, code: str) -> Cell:
        return self.kernel.finish(self.start(code), DEADLINE_S)

    def ok(self, code: str) -> Cell:
        """Run a cell that has to succeed."""
        cell = self.run(code)
        assert cell.status == "ok", f"{code}\n-> {cell.shown}"
        return cell

    def fails(self, code: str, *says: str) -> Cell:
        """Run a cell that has to fail, and to say this."""
        cell = self.run(code)
        assert cell.status == "error", f"{code}\n-> no error: {cell.shown}"
        for each in says:
            assert each in cell.error, f"{code}\n-> {each!r} is not in: {cell.error}"
        return cell

    def says(self, code: str, *parts: str) -> Cell:
        """Run a cell that has to succeed, and to show this."""
        cell = self.ok(code)
        for each in parts:
            assert each in cell.shown, f"{code}\n-> {each!r} is not in: {cell.shown}"
        return cell

    def until_begun(self, cell: Cell, token: str, ranks: Iterable[int]) -> None:
        """Wait until ranks have marked that they run it."""
        wanted = set(ranks)
        support.eventually(
            lambda: wanted <= set(self.ledger.ranks(token)),
            DEADLINE_S,
            lambda: f"{token} on ranks {wanted}; {self.ledger.ranks(token)}; {cell.shown}",
        )

    def value(self, expression: str) -> Any:
        """Return what an expression is in the notebook, as JSON has it."""
        said = self.ok(f"print('=> ' + json.dumps({expression}))").text()
        [line] = re.findall(r"^=> (.*)$", said, re.MULTILINE)
        return json.loads(line)

    def mark(self, token: str) -> str:
        """Return the line of a cell by which a rank says in the ledger that it runs it."""
        return f"with open({self.ledger.name!r}, 'a') as _: _ = _.write(f'{token} {{rank}}\\n')"

    def pids(self, mesh: str = "main") -> list[int]:
        """Return the processes of the ranks."""
        cell = self.ok(f"%%mesh @{mesh}\nimport os\nprint('pid', os.getpid())")
        return pids_in(cell.text())

    def until_all_are_told_lost(self, ranks: list[int]) -> None:
        """Wait until cells on `main` say which ranks are lost: no others, and soon all of these."""

        def tells_all() -> bool:
            token = self.new("lost")
            cell = self.fails(f"%%mesh @main\n{self.mark(token)}\nrank", "%mesh heal")
            [told] = _LOST.findall(cell.error)
            assert set(ranks_of(told)) <= set(ranks), f"only {ranks} are lost: {cell.error}"
            self.ledger.has_at_most_once(token, RANKS)
            return ranks_of(told) == ranks

        support.eventually(tells_all, DEADLINE_S, f"{ranks} to be told")

    def check_all_are_well(self) -> None:
        """Every rank of `main` runs a cell, once."""
        token = self.new("well")
        said = lines_of(self.ok(f"%%mesh @main\n{self.mark(token)}\nprint('well', rank)").text())
        assert said == {rank: [f"well {rank}"] for rank in RANKS}, said
        self.ledger.has_once(token, RANKS)


class Ledger:
    """A file to which each rank appends a line where it runs something: none twice, none lost."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._seen: dict[str, Counter[int]] = {}
        self._at = 0
        path.touch()

    def ranks(self, token: str) -> Counter[int]:
        """Return who has run it, and how often."""
        self._read()
        return self._seen.get(token, Counter())

    def has_once(self, token: str, ranks: Iterable[int]) -> None:
        """Each of these has run it once, nobody else has. It is forgotten then."""
        found = self.ranks(token)
        assert found == Counter(ranks), f"{token} ran on {found}, not once on each of {ranks}"
        del self._seen[token]

    def has_at_most_once(self, token: str, ranks: Iterable[int]) -> None:
        """No rank has run it twice, nobody but these has: a fault came between."""
        found = self.ranks(token)
        assert set(found) <= set(ranks), f"{token} ran on {found}, beyond {ranks}"
        assert set(found.values()) <= {1}, f"{token} ran on {found}"
        self._seen.pop(token, None)

    def left(self) -> dict[str, Counter[int]]:
        """Return what has run and nobody has asked for: a call that came late, or by itself."""
        self._read()
        return self._seen

    def _read(self) -> None:
        with open(self.name, "rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.decode().splitlines():
            token, rank = line.split()
            self._seen.setdefault(token, Counter())[int(rank)] += 1


def same(found: object, wanted: object, beside: str = "") -> None:
    """Raise `AssertionError` that shows both where they differ."""
    assert found == wanted, f"{found!r} is not {wanted!r} {beside}"


_LINE = re.compile(r"^\[([\d,-]+)\] (.*)$", re.MULTILINE)


def lines_of(text: str) -> dict[int, list[str]]:
    """Return what each rank has said, however equal lines were folded."""
    found: dict[int, list[str]] = {}
    for label, line in _LINE.findall(text):
        for rank in ranks_of(label):
            found.setdefault(rank, []).append(line)
    return found


def pids_in(text: str) -> list[int]:
    """Return the processes of ranks that have said `pid N`, by rank; one alone has no label."""
    found = re.findall(r"^(?:\[(\d+)\] )?pid (\d+)$", text, re.MULTILINE)
    return [int(pid) for _, pid in sorted(found, key=lambda each: int(each[0] or 0))]


def ranks_of(label: str) -> list[int]:
    """Return the ranks of `0-2,5`."""
    parts = (part.partition("-") for part in label.split(","))
    return [r for first, _, last in parts for r in range(int(first), int(last or first) + 1)]


def label(ranks: Iterable[int]) -> str:
    """Return how messages name these ranks: `rank 2`, `ranks 0,2-3`."""
    ranks = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def end_kernel(kernel: KernelClient) -> None:
    """Shut a kernel down as JupyterLab does, and wait: it must need no force."""
    process = kernel.manager.provisioner.process
    kernel.client.shutdown()
    support.eventually(lambda: process.poll() is not None, DEADLINE_S, "the kernel to end")
    kernel.__exit__()


def kill_kernel(kernel: KernelClient) -> None:
    """End it as a crash does."""
    os.kill(kernel.manager.provisioner.pid, 9)
    kernel.manager.provisioner.process.wait(DEADLINE_S)
    kernel.__exit__()
