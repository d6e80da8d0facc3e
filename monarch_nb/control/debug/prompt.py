"""A conversation with stopped ranks: what is shown, which rank is meant, what each line does.

Rule of the file: it knows no terminal and no notebook: lines come to `do`, text goes to `write`;
who asks shows `prompt` before each line. A rank that does not stop again at once is left running,
since it may wait for ranks that are stopped.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from monarch_nb.control.debug import commands
from monarch_nb.control.debug.commands import Said
from monarch_nb.control.debug.sessions import Answer, DebugService, Key, Stop
from monarch_nb.control.hangs import stacks
from monarch_nb.core.errors.folding import fold_outputs, rank_runs, rank_words
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.shape import selection
from monarch_nb.core.shape.extent import Point
from monarch_nb.core.shape.selection import SelectionError
from monarch_nb.core.wire.messages.debug import INPUT
from monarch_nb.meshes.states import ProcsState, place_of
from monarch_nb.process import remote_errors

STEP_S: Final = 0.5
"""How long a step of one rank is waited for before the prompt comes back for others."""
LOOK_S: Final = 0.1
NOBODY: Final = (
    "no rank is stopped in a debugger. breakpoint() in a cell or an endpoint stops one; "
    "%mesh pm opens the last failure"
)
_COMMAND: Final = ("(Pdb) ", "ipdb> ")
"""What pdb, and IPython's, ask for a command with."""
_LEAVE: Final = ("q", "quit", "exit")
_HEADING: Final = re.compile(r"\A> .*\n(?=-> |\Z)")
_FILE: Final = re.compile(r"(?:/[^\s:()\"']+)?/ipykernel_\d+/\d+\.py")


class Conversation:
    """One person with the ranks that are stopped. `name` is where that person types.

    `write` gets text; `wants(stop)` says which stops are spoken of. `is_closed` is looked at while
    an answer is waited for.
    """

    def __init__(
        self,
        service: DebugService,
        write: Callable[[str], None],
        wants: Callable[[Stop], bool] = lambda _stop: True,
        name: str = "another prompt",
    ) -> None:
        self.name = name
        self.focus: Key | None = None
        self.is_over = False
        self.is_closed = False
        self._service = service
        self._write = write
        self.wants = wants
        self._told: dict[Key, int] = {}
        self._is_off = False  # `detach`: the level of the mesh
        self._running: list[Answer] = []
        self._has_greeted = False

    # what there is

    def stops(self) -> list[Stop]:
        stops = self._service.stops()
        return [stop for stop in stops if stop.kind != INPUT and self.wants(stop)]

    @property
    def is_waiting(self) -> bool:
        """Whether a rank that was let go on by a step has neither stopped again nor ended."""
        self._running = [answer for answer in self._running if answer.state == "runs"]
        return bool(self._running)

    @property
    def prompt(self) -> str:
        """What to ask; of pdb's own questions, those too."""
        stop = self._focused()
        if stop is None:
            return "(mesh) "
        several = len({each.mesh for each in self.stops()}) > 1
        who = f"({stop.mesh} rank {stop.rank}) " if several else f"(rank {stop.rank}) "
        return who if stop.prompt in _COMMAND else who + stop.prompt

    def announce(self) -> None:
        """Say who has stopped since the last time, those at one place together; and choose whose
        prompt it is."""
        new = [stop for stop in self.stops() if self._told.get(stop.key) != stop.serial]
        self._told = {stop.key: stop.serial for stop in self.stops()}
        for text in self._headlines(new):
            self._write(text)
        self._choose()

    def greet(self) -> None:
        """Say once how to find out what may be typed."""
        if not self._has_greeted:
            self._has_greeted = True
            leaves = "; q leaves all ranks" if self._is_post_mortem() else ""
            self._say(f"help shows what can be typed here{leaves}")

    def _is_post_mortem(self) -> bool:
        stop = self._focused()
        return stop is not None and stop.kind == "post-mortem"

    def choose(self, rank: int) -> bool:
        """Make it the prompt of this rank, if that is stopped."""
        found = [stop for stop in self.stops() if stop.rank == rank]
        if found:
            self._go_to(found[0].key)
        return bool(found)

    def close(self) -> None:
        """Wait for no more answers: nobody is there."""
        self.is_closed = True

    def reopen(self) -> None:
        """Wait for answers again: somebody is there."""
        self.is_closed = False

    def leave(self) -> None:
        self.focus = None
        self._service.release(self)

    def lose(self, key: Key, to: str) -> None:
        if key == self.focus:
            self.focus = None
            self._say(f"the prompt was taken over by {to}")

    def who(self) -> str:
        """Return who is stopped, for a person who has asked for another."""
        return f"Stopped: {rank_words(stop.rank for stop in self.stops())}"

    def complete(self, line: str) -> list[str]:
        """Return what the last word of a line may become: whole words."""
        stop = self._focused()
        words = ["ranks", "rank", "cast", "where*", "continue", "detach"]
        if stop is None:
            words = ["list", "attach", "cast", "where*", "continue", "quit", "help"]
        own = [each for each in words if " " not in line and each.startswith(line)]
        return own + ([] if stop is None else self._service.complete(stop.key, line, 1.0))

    def _focused(self) -> Stop | None:
        return next((stop for stop in self.stops() if stop.key == self.focus), None)

    def _choose(self) -> None:
        # the rank that was meant may have gone on
        if self._is_off or self._focused() is not None:
            return
        free = (stop.key for stop in self.stops() if not self._service.hold(stop.key, self))
        self.focus = next(free, None)

    def _go_to(self, key: Key) -> None:
        self._service.hold(key, self, takes=True)
        self.focus, self._is_off = key, False

    def _headlines(self, stops: Iterable[Stop]) -> Iterator[str]:
        groups: dict[tuple[str, str, str, str], list[Stop]] = {}
        for stop in stops:
            said = _HEADING.sub("", self._named(stop.text))
            groups.setdefault((stop.mesh, stop.kind, self.place(stop), said), []).append(stop)
        several = len({each.mesh for each in self.stops()}) > 1
        for (mesh, kind, place, said), found in groups.items():
            who = rank_words(stop.rank for stop in found)
            failed = "" if kind == "breakpoint" else ", where it failed"
            yield f"{f'{mesh} ' if several else ''}{who} at {place}{failed}\n{said}"

    def place(self, stop: Stop) -> str:
        """Say where it stands: `train.py:41 step()`."""
        name = remote_errors.name_of(stop.file) or stop.file.rpartition("/")[2]
        calls = "" if stop.function == "<module>" else f" {stop.function}()"
        return f"{name}:{stop.line}{calls}"

    def _named(self, text: str) -> str:
        return _FILE.sub(lambda found: remote_errors.name_of(found[0]) or found[0], text)

    # lines

    def do(self, line: str) -> None:
        """Do what a person has typed. Returns when the next line may be asked for."""
        stop = self._focused()
        said = commands.at_mesh(line) if stop is None else commands.at_rank(line)
        if self._is_post_mortem() and said.rest.strip() in _LEAVE:
            self.is_over = True  # nothing waits for it there
            return
        try:
            self._act(said, stop)
        except SelectionError as error:
            self._say(str(error).replace("%%mesh ", ""))
        self._choose()

    def _act(self, said: Said, stop: Stop | None) -> None:
        acts: dict[str, Callable[[], object]] = {
            "pdb": lambda: self._type(stop, said.rest),
            "help": lambda: self._help(stop),
            "rank": lambda: self._attach(said.rest),
            "cast": lambda: self._cast(said.rest),
            "ranks": lambda: self._write(self._table()),
            "where*": self._where,
            "continue": lambda: self._continue(clears=stop is None),
            "detach": self._detach,
            "quit": self._quit,
            "wrong": lambda: self._say(f"there is no command {said.rest!r}; help shows them"),
            "": lambda: None,
        }
        acts[said.word]()

    def _detach(self) -> None:
        self.focus, self._is_off = None, True
        self._say("off the ranks, which stay stopped; help shows what may be typed here")

    def _say(self, text: str) -> None:
        self._write(f"{text}\n")

    def _type(self, stop: Stop | None, line: str) -> None:
        if stop is None:  # its word is read only where there is one
            return
        answer = self._service.send(stop.key, line)
        self._await([answer])
        if answer.text:
            self._write(self._named(answer.text))
        if answer.state == "runs":
            self._running.append(answer)
            self._runs([stop])
        elif answer.state == "lost":
            self._say(f"{rank_words([stop.rank])} is lost; %mesh errors says why, %mesh heal helps")
        elif answer.state == "busy":
            self._say(f"{rank_words([stop.rank])} is still at another line")
        elif answer.state == "asks":
            self._seen([stop.key])
        elif answer.state == "gone" and self.stops():
            self._say(f"{rank_words([stop.rank])} goes on")

    def _await(self, answers: Sequence[Answer]) -> None:
        limit_s = time.monotonic() + STEP_S

        def is_enough() -> bool:
            is_late = time.monotonic() >= limit_s
            return self.is_closed or all(
                each.is_final or (is_late and each.state == "runs") for each in answers
            )

        while not self._service.wait(is_enough, LOOK_S):
            continue

    def _seen(self, keys: Iterable[Key]) -> None:
        serials = {stop.key: stop.serial for stop in self._service.stops()}
        self._told.update({key: serials[key] for key in keys if key in serials})

    def _runs(self, stops: Sequence[Stop]) -> None:
        who = rank_words(stop.rank for stop in stops)
        verb = "runs" if len(stops) == 1 else "run"
        left = [each.rank for each in self.stops()]
        hint = ""
        if left:
            waited = f"{'it' if len(stops) == 1 else 'they'} may wait for {rank_words(left)}"
            hint = f"; {waited}, stopped here. Type: cast {rank_runs(left)} n, or continue"
        self._say(f"{who} {verb} on{hint}")

    def _attach(self, rest: str) -> None:
        # `3`, or as in Monarch `trainer 3`
        *actor, number = rest.split() or [""]
        if not number.isdecimal() or len(actor) > 1:
            raise SelectionError("which rank? Type: rank 3")
        stops = [
            stop
            for stop in self.stops()
            if stop.rank == int(number) and (not actor or stop.what.split(".")[0] == actor[0])
        ]
        if not stops:
            raise SelectionError(f"rank {number} is not stopped here. {self.who()}")
        self._go_to(stops[0].key)
        self._write(next(self._headlines(stops[:1])))

    def _cast(self, text: str) -> None:
        stops = self.stops()
        state = self._state(stops)
        labels = {} if state is None else dict(state.shape.extent)
        cast = commands.read_cast(text, list(labels))
        if cast.places:
            ranks = commands.ranks_at(cast.places, labels)
        elif list(cast.words) == ["all"]:
            ranks = [stop.rank for stop in stops]
        else:
            parts = selection.parts(state.view(), cast.words) if state else []
            ranks = [rank for part in parts for rank in part.ranks]
        wanted = [
            stop
            for stop in stops
            if stop.rank in ranks and (not cast.actor or stop.what.split(".")[0] == cast.actor)
        ]
        if missing := sorted(set(ranks) - {stop.rank for stop in wanted}):
            verb = "is" if len(missing) == 1 else "are"
            self._say(f"{rank_words(missing)} {verb} not stopped here")
        self._send_all(wanted, cast.command)

    def _send_all(self, stops: Sequence[Stop], line: str) -> None:
        answers = {stop.key: self._service.send(stop.key, line) for stop in stops}
        self._await(list(answers.values()))
        texts = {stop.rank: self._named(answers[stop.key].text) for stop in stops}
        self._write_folded({rank: text for rank, text in texts.items() if text})
        self._seen(key for key, answer in answers.items() if answer.state == "asks")
        if late := [stop for stop in stops if answers[stop.key].state == "runs"]:
            self._running += [answers[stop.key] for stop in late]
            self._runs(late)
        if lost := [stop.rank for stop in stops if answers[stop.key].state == "lost"]:
            self._say(f"{rank_words(lost)}: lost; %mesh errors says why")

    def _continue(self, *, clears: bool) -> None:
        stops = self.stops()
        if clears:
            answers = [self._service.send(stop.key, "clear") for stop in stops]
            self._await(answers)
            answers = [self._service.send(stop.key, "y") for stop in stops]
            self._await(answers)
        answers = [self._service.send(stop.key, "continue") for stop in stops]
        self._await(answers)

    def _quit(self) -> None:
        self.is_over = True
        if stops := self.stops():
            who = rank_words(stop.rank for stop in stops)
            self._say(f"{who} stay stopped; %mesh debug opens this prompt again")

    def _help(self, stop: Stop | None) -> None:
        if stop is not None:
            self._type(stop, "help")
        self._say(commands.MESH_HELP if stop is None else commands.RANK_HELP)

    # tables

    def _state(self, stops: Sequence[Stop]) -> ProcsState | None:
        focus = self._focused() or next(iter(stops), None)
        return None if focus is None else self._mesh_of(focus)

    def _mesh_of(self, stop: Stop) -> ProcsState | None:
        return place_of(self._service.supervision, stop.key[0]).state

    def _table(self) -> str:
        rows = [(stop, self._coords(stop), self.place(stop)) for stop in self.stops()]
        return _table_of(rows) if rows else f"{NOBODY}\n"

    def _coords(self, stop: Stop) -> str:
        state = self._mesh_of(stop)
        if state is None:
            return ""
        point = Point(stop.rank, state.shape.extent)
        return ", ".join(f"{label}={point[label]}" for label in point)

    def _where(self) -> None:
        """The stacks of all: of those that are stopped from their debuggers, with all frames of
        the user's; of the others as `%mesh stacks` has them."""
        stops = self.stops()
        state = self._state(stops)
        self._send_all(stops, "where")
        if state is None:
            return
        others = sorted(
            set(range(len(state.processes))) - {stop.rank for stop in stops} - set(state.lost)
        )
        if others:
            found = stacks.look(self._service.proc, state, others, stacks.LIMIT_S)
            calls = {rank: _calls(of_rank) for rank, of_rank in found.items()}
            self._write_folded({rank: self._named(text) for rank, text in calls.items()})

    def _write_folded(self, texts: Mapping[int, str]) -> None:
        for group in fold_outputs(texts):
            text = texts[group.ranks[0]]
            gap = "\n" if "\n" in text.rstrip("\n") else " "
            self._write(f"{rank_words(group.ranks)}:{gap}{text}")


def _table_of(rows: Sequence[tuple[Stop, str, str]]) -> str:
    table = Table(box=None, header_style="", pad_edge=False)
    several = len({stop.mesh for stop, _, _ in rows}) > 1
    for name in (*(["mesh"] if several else []), "rank", "coords", "runs", "at", "for"):
        table.add_column(name)
    now = time.monotonic()
    for stop, coords, place in rows:
        mesh = [stop.mesh] if several else []
        table.add_row(*mesh, str(stop.rank), coords, stop.what, place, f"{now - stop.at:.0f} s")
    return _plain(table)


def _calls(of_rank: Iterable[Stack]) -> str:
    lines = [
        line
        for stack in of_rank
        for line in (
            *([f"{stack.thread}:"] if stack.thread else []),
            *(f"  {each.file}({each.line}){each.function}()" for each in stack.frames),
        )
    ]
    return "".join(f"{line}\n" for line in lines) or "idle\n"


def _plain(table: Table) -> str:
    shown = io.StringIO()
    console = Console(
        file=shown, width=200, color_system=None, highlight=False, force_jupyter=False
    )
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in shown.getvalue().splitlines())
