"""The agent of a host: forks ranks from a zygote, watches them, and ends with its owner.

Its standard input stays open as long as that lives. Where ranks are kept, it goes on alone with
them for the time that was said, until another owner comes (`keeping.py`). One thread, one poll.
What a message or an exit means is decided by `rank_states.py`; here it is done. It never imports
torch or IPython.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import os
import select
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from monarch_nb import late
from monarch_nb.config import Config
from monarch_nb.core.points import point
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages import codec, keeping
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.hosts import ControllerLost, KeptHere
from monarch_nb.data import gpus
from monarch_nb.data.record_log import RecordLog, log_parts, output_log
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.host import guard, rundir
from monarch_nb.host.agent import events, requests
from monarch_nb.host.agent.followers import Followers
from monarch_nb.host.agent.keeping import Keeping, Then
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.agent.mailbox import Mailbox, Request
from monarch_nb.host.agent.rank_states import RankStates, Timing
from monarch_nb.host.agent.ranks import FDS_PER_RANK, Ranks
from monarch_nb.host.agent.zygote_client import (
    StartedZygote,
    Starter,
    ZygoteClient,
    settings_for,
)
from monarch_nb.host.launch import AgentBoot, Record, last_lines
from monarch_nb.host.output import Piece
from monarch_nb.host.rundir import RunDir
from monarch_nb.host.status import alone
from monarch_nb.host.status.board import FASTEST_S, Viewers
from monarch_nb.host.status.inspect import Inspector, Wanted
from monarch_nb.host.status.memory import MemoryGroup
from monarch_nb.net.wire import gateway_id

_END_S: Final = 2.0
_OWNER_END_S: Final = 0.3
_SLOW_END_S: Final = 3.0  # of an owner whose files are closed, on a machine that is busy
_SPARE_FDS: Final = 64
_WRONG: Final = (KeyError, TypeError, ValueError, OSError, RemoteProtocolError)  # the request is


class Agent:
    def __init__(self, boot: AgentBoot, starter: Starter, first: StartedZygote) -> None:
        self._boot = boot
        self._config = config = Config(**boot.config)
        self._over = False
        self._owner_gone = False
        self._owner: int | None = None  # a pidfd
        self._lifelines: list[int] = [0]  # each ends with the owner
        is_elsewhere = boot.controller >> HOST_SHIFT != boot.agent >> HOST_SHIFT
        self._keeping = Keeping(is_elsewhere=is_elsewhere)
        self._note_at = 0.0
        self._log_readers: dict[tuple[int, int], Iterator[bytes]] = {}  # by who asks, and whose
        self._held: RunDir | None = None
        self._output_log: RecordLog | None = None  # of what ranks write that are kept
        self._is_ready = False
        self._handlers = dict(_HANDLERS)
        if config.testing:
            self._handlers |= late.load(late.FAULTS).handlers_of_agent(self._answer)
        self._failed_verbs: set[str] = set()
        self._killed: set[int] = set()  # by us: no business of the out-of-memory killer
        self._viewers = Viewers()
        self._followers = Followers(Path(boot.run_dir))
        own_limit, self._file_limit = guard.raise_file_limit()
        self._ranks_file_limit = boot.file_limit or own_limit
        self._memory = MemoryGroup()
        self._loop = Loop()
        self._mailbox = Mailbox(Path(boot.run_dir), boot.agent)
        self._ranks = Ranks(
            self._loop, self._mailbox, config, self._viewers.sampler, self._on_pulse
        )
        run_dir, sampler = Path(boot.run_dir), self._viewers.sampler
        self._inspector = Inspector(run_dir, self._ranks, sampler, self._loop)
        self._states = RankStates(boot.agent, boot.controller, Timing.of(config))
        self._loop.add(self._mailbox.fileno(), lambda: None)  # read in every round
        self._loop.add(self._mailbox.relay_fileno(), self._mailbox.write)
        self._watch_owner()
        self._watch_children()
        self._starter = starter
        self._zygote: ZygoteClient | None = self._client_of(first)

    # --------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Serve until the owner is gone or says so, then leave nothing behind."""
        while not self._over:
            self._loop.wait(self._timeout())
            if self._mailbox.pause_s() is not None:
                self._mailbox.write()
            for request in self._mailbox.receive():
                self._on_request(request)
            now = time.monotonic()
            self._feed(events.Tick())
            if self._keeping.is_over(now):
                self._end_now()
            self._inspector.native.expire(now)
            for gone in self._followers.expire(now):
                self._follower_gone(gone)
            self._pass_on(self._ranks.flow.flush(now))
            self._ranks.flow.tell()
            self._send_status(now)
            if self._keeping.is_alone and self._note_at <= now:
                self._note_doing(now)
        self._end()

    def _timeout(self) -> float | None:
        if self._over or self._mailbox.ready():
            return 0.0
        dues = [self._states.deadline(), self._ranks.flow.due(), self._viewers.due()]
        dues += [self._inspector.native.due(), self._keeping.due(), self._followers.due()]
        dues += [self._note_at if self._keeping.is_alone else None]
        due = min((due for due in dues if due is not None), default=None)
        pauses = [self._mailbox.pause_s(), None if due is None else due - time.monotonic()]
        return min((pause for pause in pauses if pause is not None), default=None)

    def _end(self) -> None:
        for proc in self._states.procs:
            self._ranks.signal(proc, signal.SIGKILL)
        guard.end_children(_END_S)
        for proc in self._states.procs:
            self._mailbox.drop(proc)
        self._ranks.close()
        self._mailbox.close(deliver=not self._owner_gone)
        if self._owner_is_dead():
            shutil.rmtree(self._boot.run_dir, ignore_errors=True)

    # ----------------------------------------------------------------------- owner and children

    def _watch_owner(self) -> None:
        for lifeline in self._lifelines:
            self._loop.add(lifeline, functools.partial(self._on_lifeline, lifeline))
        if self._boot.owner_pid is not None:
            try:
                self._owner = os.pidfd_open(self._boot.owner_pid)
            except ProcessLookupError:
                self._on_owner_end()
            else:
                self._loop.add(self._owner, self._on_owner_end)

    def _watch_owner_no_more(self) -> None:
        ropes = [*self._lifelines, *([] if self._owner is None else [self._owner])]
        for each in ropes:
            self._loop.remove(each)
            if each:  # standard input stays open, so that nothing else gets its number
                os.close(each)
        self._owner, self._lifelines = None, []
        self._boot = dataclasses.replace(self._boot, owner_pid=None, owner_thread=None)

    def _watch_children(self) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._wakeups = reader
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGCONT, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._end_now())
        writer.send(b"0")  # the zygote may have ended before
        signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
        self._loop.add(reader.fileno(), self._on_signal)

    def _on_lifeline(self, lifeline: int) -> None:
        if not os.read(lifeline, 4096):
            self._on_owner_end()

    def _on_owner_end(self) -> None:
        match self._keeping.owner_ended(self._states.procs, ending=self._states.ending):
            case Then.END:
                self._end_now()
            case Then.GO_ON_ALONE:
                self._watch_owner_no_more()
                self._go_on_alone()

    def _end_now(self) -> None:
        self._over = self._owner_gone = True

    # ------------------------------------------------------------------------------ kept meshes

    def _keep(self, keep: keeping.Keep, request: Request) -> None:
        requests.check_procs(keep.procs)
        if self._held is None:
            run_dir = Path(self._boot.run_dir)
            self._held = rundir.hold(run_dir)
            log = output_log(run_dir, self._boot.agent)
            self._output_log = RecordLog(log, self._config.log_bytes)
        if self._keeping.is_elsewhere:
            self._tell(gateway_id(self._boot.agent >> HOST_SHIFT), KeptHere(keep.for_s > 0))
        elif self._zygote is not None:
            self._zygote.outlive_owner()
        self._keeping.keep(keep)
        self._answer(request.asker, Done())

    def _controller_lost(self, _: ControllerLost, request: Request) -> None:
        is_own = request.asker.process == gateway_id(self._boot.agent >> HOST_SHIFT)
        then = self._keeping.controller_lost(ending=self._states.ending)
        if is_own and then is Then.GO_ON_ALONE:
            self._go_on_alone()

    def _go_on_alone(self) -> None:
        self._keeping.begin(time.monotonic())
        self._viewers.end(self._boot.controller)
        self._feed(events.ControllerLost(self._keeping.procs))
        self._mailbox.drop(self._boot.controller)

    def _note_doing(self, now: float) -> None:
        self._note_at = now + alone.PERIOD_S
        kept = self._keeping.procs
        living = kept.intersection(self._states.procs)
        rows = self._viewers.sampler.rows(sorted(living))
        ended = len(kept) - len(living)
        doing = alone.doing(rows, self._states.silent, ended, time.monotonic_ns())
        left_s = (self._keeping.due() or now) - now
        with contextlib.suppress(OSError):  # the disk is full; the old one shows its age
            news = keeping.Alone(doing, self._keeping.alone_s(now), left_s)
            alone.write(Path(self._boot.run_dir), news)

    def _adopt(self, adopt: keeping.Adopt, request: Request) -> None:
        refused = self._keeping.refusal(adopt, self._boot.owner_pid)
        if refused is not None:
            self._answer(request.asker, refused)
            return
        old, new = self._boot.controller, request.asker.process
        if self._keeping.is_elsewhere:
            self._boot = dataclasses.replace(self._boot, controller=new)
        else:
            self._have_owner(new, adopt)
        alone_s = self._keeping.end(old, new, time.monotonic())
        self._viewers.end(old)
        self._feed(events.Adopted(new))
        self._answer(request.asker, self._what_there_is(alone_s))

    def _have_owner(self, new: int, adopt: keeping.Adopt) -> None:
        lifeline = rundir.open_lifeline(Path(self._boot.run_dir), new)
        if not self._keeping.is_alone:
            self._tell(self._boot.controller, keeping.TakenOver(adopt.who, time.time()))
            self._watch_owner_no_more()
        self._boot = dataclasses.replace(
            self._boot, controller=new, owner_pid=adopt.owner_pid, owner_thread=None
        )
        self._lifelines = [lifeline]
        self._watch_owner()

    def _look(self, look: keeping.Look, request: Request) -> None:
        refused = self._keeping.stranger(look.key)
        if refused is not None:
            self._answer(request.asker, refused)
            return
        self._followers.begin(request.asker.process, time.monotonic())
        self._answer(request.asker, self._what_there_is(None))

    def _follow(self, follow: keeping.Follow, request: Request) -> None:
        procs = requests.check_procs(follow.procs)
        told = self._followers.read(request.asker.process, procs, time.monotonic())
        self._answer(request.asker, told)

    def _read_log(self, wanted: keeping.ReadLog, request: Request) -> None:
        # the log of a rank that has died is there too
        reader = request.asker.process, requests.check_procs([wanted.proc])[0]
        parts = self._log_readers.get(reader)
        if parts is None:
            log = output_log(Path(self._boot.run_dir), wanted.proc)
            parts = self._log_readers[reader] = log_parts(log)
        found = next(parts, b"")
        if not found:
            del self._log_readers[reader]
        text = base64.b64encode(found).decode()
        self._answer(request.asker, keeping.LogPart(text, is_last=not found))

    def _follower_gone(self, follower: int) -> None:
        self._viewers.end(follower)
        self._feed(events.WatcherGone(follower))
        self._mailbox.drop(follower)

    def _what_there_is(self, alone_s: float | None) -> keeping.Adopted:
        procs = self._states.procs
        pids = self._ranks.pids(procs)
        found = list(gpus.visible_gpus())
        logged = 0 if self._output_log is None else self._output_log.number
        of_each = [pids.get(proc, 0) for proc in procs]
        return keeping.Adopted(procs, of_each, found, os.getpid(), logged, alone_s)

    def _owner_is_dead(self) -> bool:
        # then nobody is left to remove the run dir; its files are closed some time before
        if not self._owner_gone or self._boot.owner_pid is None or self._owner is None:
            return self._owner_gone
        ends = select.select([self._owner, *self._lifelines], [], [], _OWNER_END_S)[0]
        limit_s = _SLOW_END_S if ends else 0.0
        return bool(select.select([self._owner], [], [], limit_s)[0])

    # ------------------------------------------------------------------------------- the zygote

    def _running_zygote(self) -> ZygoteClient:
        if self._zygote is None:
            self._zygote = self._client_of(self._starter.start())
        return self._zygote

    def _client_of(self, started: StartedZygote) -> ZygoteClient:
        boot = self._boot
        if self._held is not None:  # it outlives the owner
            boot = dataclasses.replace(boot, owner_pid=None)
        settings = settings_for(boot, self._ranks_file_limit)
        return ZygoteClient(started, settings, self._loop, self._on_zygote)

    def _on_zygote(self, record: Record, fds: list[int]) -> None:
        match record["event"]:
            case "ready":
                self._report_ready(record)
            case "forked":
                self._ranks.add(record["proc"], record["pid"], fds)
                self._feed(events.Forked(record["proc"], record["pid"]))
            case "unforked":
                self._ranks.remove(record["proc"])
                self._feed(events.Ended(record["proc"], reason=record["reason"]))
            case "ended":
                self._rank_ended(record["proc"], record["status"])

    def _report_ready(self, report: Record) -> None:
        if self._is_ready:
            return
        self._is_ready = True
        facts = {name: report[name] for name in ("versions", "preload_s", "threads")}
        facts |= {"zygote": report["pid"], "gpus": list(gpus.visible_gpus())}
        ready = messages.Ready(os.getpid(), socket.gethostname(), **facts)
        self._tell(self._boot.controller, ready)

    def _on_signal(self) -> None:
        if signal.SIGCONT in self._wakeups.recv(4096) and self._owner_is_ending():
            self._on_owner_end()
        else:
            self._on_child()

    def _owner_is_ending(self) -> bool:
        owner, thread = self._boot.owner_pid, self._boot.owner_thread
        return owner is not None and thread is not None and guard.is_ending(owner, thread)

    def _on_child(self) -> None:
        # the zygote has ended, or a rank or an orphan that it has left us
        if self._zygote is not None:
            self._zygote.listen()  # of a rank that it has left us it has told us before
        ended = dict(iter(_reap, None))
        if self._zygote is not None and self._zygote.pid in ended:
            # before its ranks: who hears of their ends knows why
            lost, self._zygote = self._zygote, None
            lost.ended(ended[lost.pid])
            self._zygote_lost(lost)
        for pid, status in ended.items():
            if (proc := self._ranks.proc_of(pid)) is not None:
                self._rank_ended(proc, status)
        ours = {self._zygote.pid} if self._zygote else set()
        for pid in guard.children() - self._inspector.native.pids - ours:
            guard.kill(pid)

    def _zygote_lost(self, zygote: ZygoteClient) -> None:
        text = zygote.broken or f"{zygote.how()}\n{self._zygote_log()}"
        self._feed(events.ZygoteLost(text))

    def _zygote_log(self) -> str:
        log = Path(self._boot.run_dir) / self._boot.log_name()
        return last_lines(log.read_text(errors="replace")) if log.exists() else ""

    def _rank_ended(self, proc: int, status: int) -> None:
        exitcode = os.waitstatus_to_exitcode(status)
        oom = self._was_out_of_memory(proc, exitcode)
        output = self._ranks.remove(proc)
        self._inspector.forget(proc)
        self._viewers.end(proc)
        if output is not None:
            self._pass_on(self._ranks.flow.rest(output, time.monotonic()))
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
        self._mailbox.drop(proc)

    def _was_out_of_memory(self, proc: int, exitcode: int) -> bool:
        if exitcode != -signal.SIGKILL or proc in self._killed:
            return False
        return self._memory.killed(time.monotonic())

    # ------------------------------------------------------------------------ events and effects

    def _feed(self, event: events.Event) -> None:
        for effect in self._states.feed(event, time.monotonic()):
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
        self._ranks.signal(proc, number)

    def _tell(self, process: int, message: object) -> None:
        if not self._states.is_gone(process):
            self._mailbox.send(process, message)

    def _answer(self, asker: events.Asker, answer: object) -> None:
        if not self._states.is_gone(asker.process):
            self._mailbox.answer(asker, answer)

    def _pass_on(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            output = messages.RawOutput(**piece._asdict())
            self._tell(self._boot.controller, output)
            if self._output_log is not None:
                self._log(output)
            if self._keeping.is_alone:
                self._ranks.flow.taken(piece.bytes, time.monotonic())

    def _log(self, output: messages.RawOutput) -> None:
        assert self._output_log is not None
        try:
            self._output_log.append(0, frames.OUTPUT_PORT, time.time(), codec.encode(output))
        except OSError:  # the disk is full: ranks must not end with that
            traceback.print_exc()
            self._output_log = None

    def _send_status(self, now: float) -> None:
        if (news := self._viewers.news(now)) is not None:
            viewers, board = news
            point("agent.status")
            for viewer in viewers:
                self._tell(viewer, board)

    # ------------------------------------------------------------------------ control messages

    def _on_request(self, request: Request) -> None:
        verb = f"{request.body.get('verb')!s:.80}"
        if (found := self._handlers.get(verb)) is None:
            text = f"{verb}: an agent knows {', '.join(self._handlers)}"
            self._answer(request.asker, Refused(text))
            return
        if (fenced := self._keeping.fenced(request.asker.process)) is not None:
            self._answer(request.asker, fenced)
            return
        kind, handle = found
        try:
            handle(self, codec.decode(kind, request.body), request)
        # whatever one message asks for, the ranks of all others must not end with the agent
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, _WRONG) and verb not in self._failed_verbs:
                self._failed_verbs.add(verb)
                traceback.print_exc()  # into the log of the host, once
            what = "" if type(error) is ValueError else f"{type(error).__name__}: "  # ours
            self._answer(request.asker, Refused(f"{verb}: {what}{error}"))

    def _spawn(self, spawn: messages.Spawn, request: Request) -> None:
        procs = requests.check_procs(spawn.procs)
        point("agent.spawn")
        self._check_room(procs)
        started = len([each for each in spawn.commands or () if each is not None])
        self._memory.check_room(len(procs) - started, started)
        [owner] = requests.check_procs([spawn.owner or request.asker.process])
        places = [self._ranks.reserve(proc) for proc in procs]
        try:
            wanted = requests.fork_request(spawn, request.buffers, self._boot, places)
            commands = requests.commands_of(wanted)
            for rank in wanted["ranks"]:
                point("rank.started", rank)
            self._running_zygote().fork(wanted)  # says later how that went
        except Exception:
            for proc in procs:
                self._ranks.remove(proc)
            raise
        self._feed(events.Asked(procs, owner, commands))
        self._answer(request.asker, Done())

    def _load(self, load: messages.LoadLibraries, _: Request) -> None:
        self._running_zygote().load(load.libraries, soon=load.soon)

    def _check_room(self, procs: list[int]) -> None:
        if (why := self._states.why_none(procs)) is not None:
            raise ValueError(why)
        if len(procs) > self._ranks.board.room:
            raise ValueError(f"room for {self._ranks.board.room} more ranks, not {len(procs)}")
        needed = (len(self._states.procs) + len(procs)) * FDS_PER_RANK + _SPARE_FDS
        if needed > self._file_limit:
            raise ValueError(
                f"{len(procs)} more ranks need {needed} open files in the agent, the limit is "
                f"{self._file_limit} (ulimit -Hn)"
            )

    def _stop(self, stop: messages.Stop, request: Request) -> None:
        procs = requests.check_procs(stop.procs)
        point("agent.stop")
        self._feed(events.StopAsked(request.asker, procs, self._grace_s(stop.grace_s)))

    def _grace_s(self, wanted_s: float | None) -> float:
        return self._config.exit_s if wanted_s is None else wanted_s

    def _kill(self, kill: messages.Kill, request: Request) -> None:
        number = signal.Signals(kill.signal)
        self._feed(events.KillAsked(requests.check_procs(kill.procs), number))
        self._answer(request.asker, Done())

    def _watch(self, watch: messages.Watch, request: Request) -> None:
        procs = requests.check_procs(watch.procs)
        self._answer(request.asker, Done())
        self._feed(events.Watched(request.asker.process, procs))

    def _status(self, status: messages.WatchBoard, request: Request) -> None:
        viewer, now = request.asker.process, time.monotonic()
        period_s = FASTEST_S if status.period_s is None else status.period_s
        if status.on:
            self._tell(viewer, self._viewers.begin(viewer, period_s, now))
        else:
            self._viewers.end(viewer)
        # after the board: who has the answer has seen what there was when it asked
        self._answer(request.asker, messages.Watched(socket.gethostname()))

    def _taken(self, taken: messages.Taken, _: Request) -> None:
        self._ranks.flow.taken(taken.bytes, time.monotonic())

    def _drain(self, drain: messages.Drain, request: Request) -> None:
        procs = requests.check_procs(drain.procs)
        self._ranks.when_forwarded(procs, lambda: self._answer(request.asker, Done()))

    def _tail(self, wanted: messages.GetLastLines, request: Request) -> None:
        self._answer(request.asker, messages.LastLines(self._ranks.tail(wanted.proc)))

    def _inspect(self, wanted: Wanted, request: Request) -> None:
        self._inspector.ask(wanted, lambda answer: self._answer(request.asker, answer))

    def _hello(self, _: messages.Hello, request: Request) -> None:
        here = messages.Here(os.getpid(), socket.gethostname(), self._mailbox.malformed)
        self._answer(request.asker, here)

    def _stop_all(self, stop: messages.StopAll, request: Request) -> None:
        procs = list(self._states.procs)
        self._feed(events.StopAsked(request.asker, procs, self._grace_s(stop.grace_s)))

    def _shutdown(self, shutdown: messages.Shutdown, request: Request) -> None:
        self._feed(events.StopAsked(request.asker, None, self._grace_s(shutdown.grace_s)))


_HANDLERS: Final[dict[str, tuple[type, Callable[..., None]]]] = {
    codec.verb_of(kind): (kind, handle)
    for kind, handle in (
        (messages.Spawn, Agent._spawn),
        (messages.Stop, Agent._stop),
        (messages.LoadLibraries, Agent._load),
        (messages.Kill, Agent._kill),
        (messages.Watch, Agent._watch),
        (messages.WatchBoard, Agent._status),
        (messages.Taken, Agent._taken),
        (messages.Drain, Agent._drain),
        (messages.GetLastLines, Agent._tail),
        (messages.DumpStacks, Agent._inspect),
        (messages.GetStackDumps, Agent._inspect),
        (messages.GetBoardRows, Agent._inspect),
        (messages.GetNativeStacks, Agent._inspect),
        (messages.Shutdown, Agent._shutdown),
        (messages.Hello, Agent._hello),
        (messages.StopAll, Agent._stop_all),
        (keeping.Keep, Agent._keep),
        (keeping.Adopt, Agent._adopt),
        (keeping.Look, Agent._look),
        (keeping.Follow, Agent._follow),
        (keeping.ReadLog, Agent._read_log),
        (ControllerLost, Agent._controller_lost),
    )
}


def _reap() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None
