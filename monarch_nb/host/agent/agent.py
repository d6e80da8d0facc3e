"""The agent of a host: forks ranks from a zygote, watches them, and outlives nobody.

`python -m monarch_nb.host.agent.agent`, with its boot record as a line on standard input, which
stays open as the rope to the owner. One thread, one poll. What a message or an exit means is
decided by `rank_states.py`; here it is done. It never imports torch or IPython.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from monarch_nb.config import Config
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.host import guard, rundir
from monarch_nb.host.agent import events, rank_states, requests
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.agent.mailbox import Letter, Mail
from monarch_nb.host.agent.ranks import FDS_PER_RANK, Wards
from monarch_nb.host.agent.zygote_client import Forks, settings_for
from monarch_nb.host.launch import AgentBoot, last_lines
from monarch_nb.host.output.pipes import Piece
from monarch_nb.host.status import dumps
from monarch_nb.host.status.inspect import Looks, Wanted
from monarch_nb.host.status.oom import MemoryGroup
from monarch_nb.host.status.viewers import FASTEST_S, Viewers

Record = dict[str, Any]
_END_S: Final = 2.0
_OWNER_END_S: Final = 0.3
_SPARE_FDS: Final = 64
_EXITED: Final = 0


class Agent:
    """Everything of one host."""

    def __init__(self, boot: AgentBoot) -> None:
        self._boot = boot
        self._config = config = Config(**boot.config)
        self._over = False
        self._owner_gone = False
        self._owner: int | None = None  # a pidfd
        self._greeted = False
        self._killed: set[int] = set()  # by us: no business of the out-of-memory killer
        self._viewers = Viewers()
        self._ranks_file_limit, self._file_limit = guard.raise_file_limit()
        self._memory = MemoryGroup()
        self._loop = Loop()
        self._mail = Mail(Path(boot.run_dir), boot.agent)
        self._wards = Wards(self._loop, self._mail, config, self._viewers.sampler, self._on_pulse)
        run_dir, sampler = Path(boot.run_dir), self._viewers.sampler
        self._looks = Looks(run_dir, self._wards, sampler, self._loop)
        timing = rank_states.Timing(
            config.pulse_interval_s / 2, config.exit_s, config.grace_s, config.start_s
        )
        self._registry = rank_states.Registry(boot.agent, boot.controller, timing)
        self._loop.add(self._mail.fileno(), lambda: None)  # read in every round
        self._watch_owner()
        self._watch_children()
        self._lifeline, self._lifeline_held = os.pipe()
        self._forks: Forks | None = None
        self._zygote()

    # --------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Serve until the owner is gone or says so, then leave nothing behind."""
        while not self._over:
            self._loop.wait(self._timeout())
            for letter in self._mail.receive():
                self._on_letter(letter)
            now = time.monotonic()
            self._feed(events.Tick())
            self._looks.native.expire(now)
            self._pass_on(self._wards.outflow.flush(now))
            self._wards.outflow.tell()
            self._show(now)
        self._end()

    def _timeout(self) -> float | None:
        if self._over or self._mail.ready():
            return 0.0
        dues = [self._registry.deadline(), self._wards.outflow.due(), self._viewers.due()]
        dues.append(self._looks.native.due())
        due = min((due for due in dues if due is not None), default=None)
        return None if due is None else due - time.monotonic()

    def _end(self) -> None:
        for proc in self._registry.procs:
            self._wards.signal(proc, signal.SIGKILL)
        guard.end_children(_END_S)
        for proc in self._registry.procs:
            self._mail.drop(proc)
        self._wards.close()
        self._mail.close(deliver=not self._owner_gone)
        if self._owner_is_dead():
            shutil.rmtree(self._boot.run_dir, ignore_errors=True)

    # ------------------------------------------------------------------------------------ ropes

    def _watch_owner(self) -> None:
        self._loop.add(0, self._on_stdin)
        if self._boot.owner_pid is not None:
            try:
                self._owner = os.pidfd_open(self._boot.owner_pid)
            except ProcessLookupError:
                self._on_owner_end()
            else:
                self._loop.add(self._owner, self._on_owner_end)

    def _watch_children(self) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._wakeups = reader
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._on_owner_end())
        signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
        self._loop.add(reader.fileno(), self._on_child)

    def _on_stdin(self) -> None:
        if not os.read(0, 4096):
            self._on_owner_end()

    def _on_owner_end(self) -> None:
        self._over = self._owner_gone = True

    def _owner_is_dead(self) -> bool:
        """Whether nobody is left to remove the run dir. Its files are closed a moment before."""
        if not self._owner_gone or self._boot.owner_pid is None:
            return self._owner_gone
        return self._owner is None or bool(select.select([self._owner], [], [], _OWNER_END_S)[0])

    # ------------------------------------------------------------------------------- the zygote

    def _zygote(self) -> Forks:
        """The running zygote; another one if the last has died."""
        if self._forks is None:
            settings = settings_for(self._boot, self._ranks_file_limit)
            self._forks = Forks(settings, self._lifeline, self._loop, self._on_zygote)
        return self._forks

    def _on_zygote(self, record: Record, fds: list[int]) -> None:
        match record["event"]:
            case "ready":
                self._greet(record)
            case "forked":
                self._wards.admit(record["proc"], record["pid"], fds)
                self._feed(events.Forked(record["proc"], record["pid"]))
            case "unforked":
                self._wards.dismiss(record["proc"])
                self._feed(events.Ended(record["proc"], reason=record["reason"]))
            case "ended":
                self._rank_ended(record["proc"], record["status"])

    def _greet(self, report: Record) -> None:
        if self._greeted:
            return
        self._greeted = True
        facts = {name: report[name] for name in ("versions", "preload_s", "threads")}
        ready = messages.Ready(os.getpid(), socket.gethostname(), zygote=report["pid"], **facts)
        self._tell(self._boot.controller, ready)

    def _on_child(self) -> None:
        """A child has ended: the zygote, or a rank or an orphan that the zygote has left us."""
        self._wakeups.recv(4096)
        if self._forks is not None:
            self._forks.listen()  # of a rank that it has left us it has told us before
        ended = dict(iter(_reap, None))
        if self._forks is not None and self._forks.pid in ended:
            # before its ranks: who hears of their ends knows why
            lost, self._forks = self._forks, None
            lost.ended(ended[lost.pid])
            self._zygote_lost(lost)
        for pid, status in ended.items():
            if (proc := self._wards.proc_of(pid)) is not None:
                self._rank_ended(proc, status)
        for pid in (
            guard.children() - self._looks.native.pids - {self._forks.pid if self._forks else 0}
        ):
            guard.kill(pid)

    def _zygote_lost(self, forks: Forks) -> None:
        text = forks.broken or f"{forks.how()}\n{self._last_words()}"
        self._feed(events.ZygoteLost(text))

    def _last_words(self) -> str:
        log = Path(self._boot.run_dir) / self._boot.log_name()
        return last_lines(log.read_text(errors="replace")) if log.exists() else ""

    def _rank_ended(self, proc: int, status: int) -> None:
        exitcode = os.waitstatus_to_exitcode(status)
        oom = self._was_out_of_memory(proc, exitcode)
        output = self._wards.dismiss(proc)
        dumps.forget(Path(self._boot.run_dir), proc)
        self._viewers.end(proc)
        if output is not None:
            self._pass_on(self._wards.outflow.rest(output, time.monotonic()))
        self._feed(
            events.Ended(
                proc,
                code=exitcode if exitcode >= 0 else None,
                signal=-exitcode if exitcode < 0 else None,
                reason=self._memory.reason() if oom else None,
                tail=output.tail() if output else "",
                oom=oom,
            )
        )
        self._mail.drop(proc)

    def _was_out_of_memory(self, proc: int, exitcode: int) -> bool:
        if exitcode != -signal.SIGKILL or proc in self._killed:
            return False
        return self._memory.killed(time.monotonic())

    # ------------------------------------------------------------------------ events and effects

    def _feed(self, event: events.Event) -> None:
        for effect in self._registry.feed(event, time.monotonic()):
            match effect:
                case events.Tell(process, message):
                    self._tell(process, message)
                case events.Answer(asker):
                    self._answer(asker, Done())
                case events.Kill(proc, number):
                    self._signal(proc, number)
                case events.Finish():
                    self._over = True

    def _on_pulse(self, proc: int, up: bool) -> None:
        self._feed(events.Pulsed(proc, up))

    def _signal(self, proc: int, number: int) -> None:
        if number == signal.SIGKILL:
            self._killed.add(proc)
        self._wards.signal(proc, number)

    def _tell(self, process: int, message: object) -> None:
        if not self._registry.is_gone(process):
            self._mail.send(process, message)

    def _answer(self, asker: events.Asker, answer: object) -> None:
        if not self._registry.is_gone(asker.process):
            self._mail.answer(asker, answer)

    def _pass_on(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._tell(self._boot.controller, messages.RawOutput(**piece._asdict()))

    def _show(self, now: float) -> None:
        if (news := self._viewers.news(now)) is not None:
            viewers, board = news
            for viewer in viewers:
                self._tell(viewer, board)

    # ------------------------------------------------------------------------ control messages

    def _on_letter(self, letter: Letter) -> None:
        verb = str(letter.body.get("verb"))
        if (found := _HANDLERS.get(verb)) is None:
            text = f"{verb}: an agent knows {', '.join(_HANDLERS)}"
            self._answer(letter.asker, Refused(text))
            return
        kind, handle = found
        try:
            handle(self, codec.decode(kind, letter.body), letter)
        except (KeyError, TypeError, ValueError, OSError, RemoteProtocolError) as error:
            self._answer(letter.asker, Refused(f"{verb}: {type(error).__name__}: {error}"))

    def _spawn(self, spawn: messages.Spawn, letter: Letter) -> None:
        procs = requests.check_procs(spawn.procs)
        self._check_room(procs)
        owner = letter.asker.process if spawn.owner is None else spawn.owner
        places = [self._wards.reserve(proc) for proc in procs]
        try:
            request = requests.fork_request(spawn, letter.buffers, self._boot, places)
        except ValueError:
            for proc in procs:
                self._wards.dismiss(proc)
            raise
        self._feed(events.Asked(procs, owner, requests.commands_of(request)))
        self._zygote().fork(request)
        self._answer(letter.asker, Done())

    def _check_room(self, procs: list[int]) -> None:
        if self._registry.ending:
            raise ValueError("this agent is shutting down")
        if used := [proc for proc in procs if self._registry.knows(proc)]:
            raise ValueError(f"process ids are used once: {used}")
        if len(procs) > self._wards.board.room:
            raise ValueError(f"room for {self._wards.board.room} more ranks, not {len(procs)}")
        needed = (len(self._registry.procs) + len(procs)) * FDS_PER_RANK + _SPARE_FDS
        if needed > self._file_limit:
            raise ValueError(
                f"{len(procs)} more ranks need {needed} open files in the agent, the limit is "
                f"{self._file_limit} (ulimit -Hn)"
            )

    def _stop(self, stop: messages.Stop, letter: Letter) -> None:
        procs = requests.check_procs(stop.procs)
        self._feed(events.StopAsked(letter.asker, procs, self._grace_s(stop.grace_s)))

    def _grace_s(self, wanted_s: float | None) -> float:
        return self._config.exit_s if wanted_s is None else wanted_s

    def _kill(self, kill: messages.Kill, letter: Letter) -> None:
        number = signal.Signals(kill.signal)
        self._feed(events.KillAsked(requests.check_procs(kill.procs), number))
        self._answer(letter.asker, Done())

    def _watch(self, watch: messages.Watch, letter: Letter) -> None:
        procs = requests.check_procs(watch.procs)
        self._answer(letter.asker, Done())
        self._feed(events.Watched(letter.asker.process, procs))

    def _status(self, status: messages.WatchBoard, letter: Letter) -> None:
        viewer, now = letter.asker.process, time.monotonic()
        period_s = FASTEST_S if status.period_s is None else status.period_s
        told = self._viewers.begin(viewer, period_s, now) if status.on else None
        self._answer(letter.asker, messages.Watched(socket.gethostname()))
        if told is None:
            self._viewers.end(viewer)
        else:
            self._tell(viewer, told)

    def _taken(self, taken: messages.Taken, _: Letter) -> None:
        self._wards.outflow.taken(taken.bytes, time.monotonic())

    def _drain(self, drain: messages.Drain, letter: Letter) -> None:
        procs = requests.check_procs(drain.procs)
        self._wards.when_passed(procs, lambda: self._answer(letter.asker, Done()))

    def _tail(self, wanted: messages.GetLastLines, letter: Letter) -> None:
        self._answer(letter.asker, messages.LastLines(self._wards.tail(wanted.proc)))

    def _look(self, wanted: Wanted, letter: Letter) -> None:
        self._looks.ask(wanted, lambda answer: self._answer(letter.asker, answer))

    def _hello(self, _: messages.Hello, letter: Letter) -> None:
        here = messages.Here(os.getpid(), socket.gethostname(), self._mail.malformed)
        self._answer(letter.asker, here)

    def _stop_all(self, stop: messages.StopAll, letter: Letter) -> None:
        procs = list(self._registry.procs)
        self._feed(events.StopAsked(letter.asker, procs, self._grace_s(stop.grace_s)))

    def _shutdown(self, shutdown: messages.Shutdown, letter: Letter) -> None:
        self._feed(events.StopAsked(letter.asker, None, self._grace_s(shutdown.grace_s)))


_HANDLERS: Final[dict[str, tuple[type, Callable[[Agent, Any, Letter], None]]]] = {
    codec.verb_of(kind): (kind, handle)
    for kind, handle in (
        (messages.Spawn, Agent._spawn),
        (messages.Stop, Agent._stop),
        (messages.Kill, Agent._kill),
        (messages.Watch, Agent._watch),
        (messages.WatchBoard, Agent._status),
        (messages.Taken, Agent._taken),
        (messages.Drain, Agent._drain),
        (messages.GetLastLines, Agent._tail),
        (messages.DumpStacks, Agent._look),
        (messages.GetStackDumps, Agent._look),
        (messages.GetBoardRows, Agent._look),
        (messages.GetNativeStacks, Agent._look),
        (messages.Shutdown, Agent._shutdown),
        (messages.Hello, Agent._hello),
        (messages.StopAll, Agent._stop_all),
    )
}


def _reap() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def main() -> None:
    """Run one agent, if its owner lives."""
    try:
        boot = AgentBoot.read(0)
        if boot.owner_pid is not None:
            guard.wake_at_end_of(boot.owner_pid)
    except (EOFError, ProcessLookupError) as error:
        rundir.sweep_all()
        raise SystemExit(str(error)) from None
    guard.adopt_orphans()
    Agent(boot).run()


if __name__ == "__main__":
    main()
    sys.exit(_EXITED)
