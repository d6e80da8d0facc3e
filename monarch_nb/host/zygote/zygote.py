"""The fork server: loads libraries once for all, forks ranks, reaps them, ends what they leave.

A rank with a command of the user's is forked too, and then executes it.

Rule: one thread, no zmq, no CUDA, and nobody forks but the main thread (a parent's death signal is
bound to the thread). It ends, with all that it ever forked, when its agent or the owner does. It
knows nothing of meshes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import os
import platform
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monarch_nb.host import guard
from monarch_nb.host.launch import WHEN_IDLE
from monarch_nb.host.zygote import child, command, threads
from monarch_nb.host.zygote.channel import Channel
from monarch_nb.host.zygote.huge_pages import HugePages

if TYPE_CHECKING:
    from monarch_nb.host.launch import Record

_END_S: Final = 2.0
_IDLE_MS: Final = 1000
_OWNERS: Final = 1  # who has spawned the ranks is as busy as they are
_REPORTED: Final = ("torch", "numpy", "IPython", "cloudpickle", "zmq")


class AgentGoneError(BaseException):
    """The agent has ended, in the middle of an import, which nobody needs any more."""


class Zygote:
    """Forks on request, one at a time, and listens in between."""

    def __init__(
        self,
        channel: Channel,
        inherited: child.Inherited,
        owner: int | None,
        later: Mapping[str, Sequence[str]],
    ) -> None:
        self._channel = channel
        self._inherited = inherited
        self._libraries = set(inherited.preload)
        self._due: deque[str] = deque()  # libraries to be loaded before the next fork
        self._later = later
        self._when_idle = deque(self._with(inherited.preload))  # modules
        self._hurries = False  # loads them though all cores are busy
        self._huge_pages = HugePages()
        self._asked: deque[Record] = deque()
        self._ranks: dict[int, int] = {}  # pid -> proc
        self._records: dict[int, Path] = {}  # pid -> what a started rank was left to read
        self._is_idle = True
        self._cores = len(os.sched_getaffinity(0))
        self._agent = os.getppid()
        self._over = False
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self._wakeups = _wake_on_child()
        self._poll.register(self._wakeups, select.POLLIN)
        self._owner = None if owner is None else os.pidfd_open(owner)
        if self._owner is not None:
            self._poll.register(self._owner, select.POLLIN)

    def run(self) -> None:
        """Serve until agent or owner is gone, then end every descendant."""
        while not self._over:
            ready = {fd for fd, _ in self._poll.poll(self._timeout_ms())}
            self._is_idle = not ready and not self._asked
            if self._channel.fileno() in ready:
                self._read_requests()
            self._over = self._over or self._owner in ready
            if self._wakeups.fileno() in ready:
                self._wakeups.recv(4096)
                self._reap()
            if self._asked and not self._over:
                self._serve()
            elif not ready:
                self._prepare()
        guard.end_children(_END_S)

    def _timeout_ms(self) -> int | None:
        # how long to wait until it is idle; before the first ranks nobody is in the middle of work
        if self._asked:
            return 0
        has_core = self._hurries or len(self._ranks) + _OWNERS < self._cores
        if not (self._can_prepare() and has_core):
            return None  # there is nothing to do, or no core to spare for it
        return 0 if self._is_idle else _IDLE_MS

    def _can_prepare(self) -> bool:
        # ranks hold what they were forked with: its pages would be there twice
        return bool(self._due or self._when_idle) or not (self._ranks or self._huge_pages.is_done)

    def _prepare(self) -> None:
        if names := self._due or self._when_idle:
            self._load(names)
            self._huge_pages.begin_again()
            self._hurries = self._hurries and bool(self._due or self._when_idle)
        else:
            self._huge_pages.make_one()

    def ask(self, request: Record) -> None:
        if "load" in request:
            self._want(request["load"])
            self._hurries = self._hurries or request["soon"]
        elif "outlive" in request:
            self._outlive_owner()
        else:
            self._asked.extend({**request["common"], **rank} for rank in request["ranks"])

    def _outlive_owner(self) -> None:
        if self._owner is not None:
            self._poll.unregister(self._owner)
            os.close(self._owner)
            self._owner = None

    def _read_requests(self) -> None:
        for request, _ in self._channel.receive():
            self.ask(request)
        self._over = self._channel.closed

    def _want(self, libraries: Sequence[str]) -> None:
        new = [name for name in libraries if name not in self._libraries]
        self._libraries.update(new)
        self._due.extend(new)
        self._when_idle.extend(self._with(new))

    def _with(self, libraries: Sequence[str]) -> list[str]:
        return [name for library in libraries for name in self._later.get(library, ())]

    def _load(self, names: deque[str]) -> None:
        try:
            with _only_while_lives(self._agent), self._reaping():
                load_also(names.popleft())
        except AgentGoneError:
            self._over = True
            return
        self._inherited = dataclasses.replace(self._inherited, setters=threads.find_setters())

    @contextlib.contextmanager
    def _reaping(self) -> Iterator[None]:
        # an import may take seconds, and who has died is to be told at once
        before = signal.signal(signal.SIGCHLD, lambda *_: self._reap())
        try:
            yield
        finally:
            signal.signal(signal.SIGCHLD, before)

    def _serve(self) -> None:
        boot = self._asked.popleft()
        self._want(boot.get("libraries") or ())
        while self._due and not self._over:
            self._load(self._due)
        if self._over:
            return
        try:
            self._fork(boot)
        except BrokenPipeError:
            self._over = True
        except OSError as error:  # no more processes or files allowed
            self._tell({"event": "unforked", "proc": boot["proc"], "reason": f"fork: {error}"})

    def _fork(self, boot: Record) -> None:
        with contextlib.ExitStack() as files:
            out_read, out_write = _pipe(files)
            err_read, err_write = _pipe(files)
            pid = os.fork()
            if pid == 0:
                run = command.execute if boot.get("command") else child.become_rank
                run(boot, out_write, err_write, self._inherited)
            self._ranks[pid] = boot["proc"]
            if boot.get("command"):
                self._records[pid] = command.record_path(boot)
            handle = _pidfd(pid)
            files.callback(os.close, handle)
            record = {"event": "forked", "proc": boot["proc"], "pid": pid}
            self._channel.send(record, (out_read, err_read, handle))

    def _reap(self) -> None:
        while (pid := _ended_child()) is not None:
            proc = self._ranks.pop(pid, None)
            if proc is not None:
                guard.kill_group(pid)  # before it is reaped: until then nobody can have its number
            _, status = os.waitpid(pid, 0)
            if (record := self._records.pop(pid, None)) is not None:
                record.unlink(missing_ok=True)  # of a command that never was a rank
            if proc is not None:
                self._tell({"event": "ended", "proc": proc, "status": status})
            self._sweep()

    def _sweep(self) -> None:
        # End adopted processes whose rank is gone; their orphans come with the next SIGCHLD
        living = set(self._ranks.values())
        for pid in guard.children() - self._ranks.keys():
            proc = guard.tag_of(pid)
            if proc is not None and proc not in living:
                guard.kill(pid)

    def _tell(self, record: Record) -> None:
        try:
            self._channel.send(record)
        except OSError:
            self._over = True


def _pipe(files: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        files.callback(os.close, end)
    return ends


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        guard.kill(pid)  # nobody could end it safely; its end is reported as usual
        raise


def _ended_child() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _wake_on_child() -> socket.socket:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    return reader


def preload(modules: list[str], main: str) -> Record:
    """Import and make what every rank needs, and report. Raises what an import raises."""
    started = time.monotonic()
    gc.disable()
    with threads.single():
        for name in modules:
            importlib.import_module(name)
        child.prepare_main(main)
    _freeze()
    return {
        "event": "ready",
        "pid": os.getpid(),
        "preload_s": round(time.monotonic() - started, 3),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "versions": _versions(),
    }


@contextlib.contextmanager
def _only_while_lives(agent: int) -> Iterator[None]:
    """Raise `AgentGoneError` in the middle of this when the agent ends, which the kernel tells by
    SIGCONT: an import may take for ever."""

    def look(*_: object) -> None:
        if os.getppid() != agent:
            raise AgentGoneError

    before = signal.signal(signal.SIGCONT, look)
    try:
        look()
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


def load_also(name: str) -> None:
    """Import what many ranks will need. They can do without: only the log tells of an error."""
    try:
        with threads.single():
            importlib.import_module(name)
    except Exception:  # noqa: BLE001  an import may raise anything
        traceback.print_exc()
    _freeze()


def _freeze() -> None:
    # a collection in a rank shall not touch, hence copy, every page of this heap
    gc.collect()
    gc.freeze()


def _versions() -> dict[str, str]:
    # of what is loaded; importlib.metadata takes 30 ms, and somebody waits for a first rank
    found = {"python": platform.python_version()}
    for name in _REPORTED:
        if (module := sys.modules.get(name)) is not None:
            found[name] = str(module.__version__)
    return found


def _first(channel: Channel) -> list[Record]:
    # the agent's first message is the settings; requests may have come with it
    while not channel.closed:
        select.select([channel], [], [])
        if messages := channel.receive():
            return [record for record, _ in messages]
    raise SystemExit(0)


def main(arguments: list[str]) -> None:
    """Run `python -m monarch_nb.host.zygote.zygote <channel> <lifeline> <agent's pid>`."""
    end, lifeline, agent = (int(text) for text in arguments)
    os.set_inheritable(end, False)
    os.set_inheritable(lifeline, False)
    if not guard.die_with_parent(signal.SIGKILL, agent):  # what it loads may take long
        return
    guard.adopt_orphans()
    channel = Channel(socket.socket(fileno=end))
    settings, *requests = _first(channel)
    guard.lower_file_limit(settings["file_limit"])
    try:
        report = preload(settings["preload"], settings["main"])
        setters = threads.find_setters()
        main, modules = settings["main"], settings["preload"]
        inherited = child.Inherited(os.getpid(), lifeline, main, modules, setters)
        later = WHEN_IDLE if settings["loads_when_idle"] else {}
        zygote = Zygote(channel, inherited, settings["owner_pid"], later)
    except ModuleNotFoundError as error:
        named = error.name in settings["preload"] and not settings["loads_when_idle"]
        text = f"no module {error.name!r}, which MONARCH_NB_PRELOAD names: install or correct it"
        channel.send({"event": "broken", "text": text if named else traceback.format_exc()})
        return
    except Exception:  # noqa: BLE001  an import may raise anything; the agent reports it
        channel.send({"event": "broken", "text": traceback.format_exc()})
        return
    channel.send(report)
    for request in requests:
        zygote.ask(request)
    # from now on it has to end what its ranks leave behind; a stopped zygote is woken to do that
    if guard.die_with_parent(signal.SIGCONT, agent):
        zygote.run()


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # what preloaded libraries have registered for the end is not for us
