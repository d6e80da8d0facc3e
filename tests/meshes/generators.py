"""Actors that are restarted, and those that call and own them; ranks import them from here."""

import os
import signal
from pathlib import Path

from monarch_nb import Actor, MeshFailure, SupervisionError, endpoint, this_host, this_proc
from monarch_nb.elastic import restart
from tests import support


class Generator(Actor):
    """Counts from where its arguments say. Each construction takes one word of the file `fate`:
    "killed" kills the process, "raises" raises; without one it is made."""

    def __init__(self, start: int = 0, *, fate: str | None = None) -> None:
        self.count = start
        words = Path(fate).read_text().split() if fate else []
        if words:
            assert fate
            Path(fate).write_text(" ".join(words[1:]))
            if words[0] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if words[0] == "raises":
                raise ValueError("cannot be made")

    @endpoint
    def generate(self, note: str = "") -> int:
        """Count; with a note, append a line to that file."""
        self.count += 1
        if note:
            with open(note, "a") as file:
                file.write("x")
        return self.count

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def hold(self, started, go_on):
        """Be busy until the file is there."""
        started.send(os.getpid())
        support.until_exists(go_on)

    @endpoint
    def fail(self) -> None:
        """Told by `broadcast`, it ends the actor."""
        raise ValueError("nobody waits")


class Noting(Actor):
    """Notes in a file that it was made, and that it has ended."""

    def __init__(self, note: str) -> None:
        self.note = note
        self._add("made")

    def __cleanup__(self, _: Exception | None) -> None:
        self._add("ended")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    def _add(self, word: str) -> None:
        with open(self.note, "a") as file:
            file.write(f"{word} ")


class Trainer(Actor):
    """Calls generators that another process owns."""

    @endpoint
    def train(self, generators, steps: int) -> int:
        """Call as often, any one of them; how many calls have failed."""
        failed = 0
        for _ in range(steps):
            try:
                generators.generate.choose().get()
            except SupervisionError:
                failed += 1
        return failed

    @endpoint
    def call(self, generators) -> list[int]:
        return list(generators.generate.call().get().values())


class Owner(Actor):
    """Has generators of its own."""

    def __init__(self, max_restarts: int = 3, *, handles: bool = True) -> None:
        self.handles = handles
        self.told: list[str] = []
        self.procs = this_host().spawn_procs({"gpus": 2}, name="owned")
        wanted = restart(max=max_restarts, within_s=60)
        self.generators = self.procs.spawn("generators", Generator, supervise=wanted)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def handle(self):
        return self.generators

    @endpoint
    def failures(self) -> list[str]:
        return self.told

    @endpoint
    def spawn_on(self, procs) -> None:
        """Do so on processes of another owner."""
        procs.spawn("guests", Generator, supervise=restart())

    @endpoint
    def beside_me(self) -> list[int]:
        """Restart an actor of this very process: what it counts before and after it failed."""
        own = this_proc().spawn("own", Generator, supervise=restart())
        before = own.generate.call_one().get()
        own.fail.broadcast()
        try:
            return [before, own.generate.call_one().get()]
        except SupervisionError:  # sent before it was known
            return [before, own.generate.call_one().get()]

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(failure.report())
        return self.handles
