"""What a forked child does before it is a rank: leave the zygote behind, then run the rank's main.

It never returns into the zygote's loop. Nothing of the user's runs before it is certain that the
process ends with its parents (`guard.py`). It knows the rank's main only by name. A rank that is
started by a command (`command.py`, `rank.py`) is made of the same pieces.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import io
import os
import platform
import signal
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from monarch_nb.host import guard
from monarch_nb.host.zygote import threads

if TYPE_CHECKING:
    from monarch_nb.host.launch import Record

_VICTIM_SCORE: Final = 500  # of 1000: a rank dies of its memory before the agent or the kernel does
_NODES: Final = Path("/sys/devices/system/node")
_MPOL_BIND: Final = 2
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}  # libc has no function for it
_MAX_NODES: Final = 64
_first_main: Final = sys.modules["__main__"]  # kept: its functions are still on the stack


@dataclass(frozen=True)
class Inherited:
    """What each child gets from the zygote."""

    zygote: int
    lifeline: int
    main: str
    preload: list[str] = field(default_factory=list)
    setters: list[threads.Setter] = field(default_factory=list)


def become_rank(boot: Record, out: int, err: int, inherited: Inherited) -> NoReturn:
    """Turn this freshly forked child into the rank that `boot` describes, and end with it."""

    def run() -> int:
        if not guard.die_with_parent(signal.SIGKILL, inherited.zygote):
            return 1
        lifeline = guard.die_with_pipe(inherited.lifeline)
        detach(boot, out, err)
        os.closerange(3, lifeline)
        os.closerange(lifeline + 1, os.sysconf("SC_OPEN_MAX"))
        open_streams()
        apply_settings(boot)
        prepare_interpreter(boot, boot["path"], inherited.setters)
        reseed()
        gc.enable()
        return find_main(inherited.main)(boot)

    exit_after(run)


def exit_after(run: Callable[[], int]) -> NoReturn:
    """Call `run`, say what went wrong, and end this process whatever it was."""
    code = 1
    try:
        code = run()
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:  # noqa: BLE001  whatever it was, this process must not return
        traceback.print_exc(file=sys.__stderr__)  # the other one needs threads that end now
    finally:
        _flush()
        os._exit(code if isinstance(code, int) else 0)


def detach(boot: Record, out: int, err: int) -> None:
    """Give it a session, signals and streams of its own, and marks for the ones that clean up."""
    os.setsid()
    guard.tag(boot["proc"])
    guard.prefer_as_victim(_VICTIM_SCORE)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(out, 1)
    os.dup2(err, 2)


def open_streams() -> None:
    """Open new streams: inherited ones believe that they may seek, for they were opened on a
    file."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = _stream(fd)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.enable(2)


def _stream(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.FileIO(fd, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


def apply_settings(boot: Record) -> None:
    """Set processors, environment and folder as the mesh was asked for. All of it survives an
    exec."""
    if boot.get("bind"):
        bind(boot["bind"])
    for name, value in boot["env"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if boot.get("cwd"):
        os.chdir(boot["cwd"])


def prepare_interpreter(
    boot: Record, path: list[str] | None, setters: list[threads.Setter]
) -> None:
    if path:
        sys.path[:] = path
    sys.argv[:] = [""]
    sys.modules["__main__"] = types.ModuleType("__main__")
    threads.share(1 if boot.get("bind") else boot.get("host_size") or 1, setters)


def reseed() -> None:
    # Python reseeds its own `random` after a fork
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def find_main(main: str) -> Callable[[Record], int]:
    module, _, function = main.partition(":")
    found: Callable[[Record], int] = getattr(importlib.import_module(module), function)
    return found


def prepare_main(main: str) -> None:
    """Let the module of the rank's main make, in the zygote, what every rank will have."""
    module = importlib.import_module(main.partition(":")[0])
    if (made := getattr(module, "prepare", None)) is not None:
        made()


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception as error:  # noqa: BLE001  a replaced or closed stream, and nobody left to tell
            os.write(2, f"flush: {error!r}\n".encode())


def bind(wanted: Mapping[str, list[int]]) -> None:
    """Bind this process to processors and memory, as numactl would.

    Raises `ValueError` for processors or nodes that are not there.
    """
    processors = {*wanted.get("cpus", ()), *_of_nodes(wanted.get("nodes", ()))}
    if processors:
        try:
            os.sched_setaffinity(0, processors)
        except OSError as error:
            raise ValueError(
                f"proc_bind: none of the processors {sorted(processors)} may be used here"
            ) from error
    if memory := wanted.get("memory"):
        _bind_memory(memory)


def _of_nodes(nodes: Sequence[int]) -> set[int]:
    # a machine without nodes is node 0
    if not nodes:
        return set()
    allowed = os.sched_getaffinity(0)
    if not _NODES.exists() and set(nodes) == {0}:
        return allowed
    return {cpu for cpu in allowed if any((_NODES / f"node{n}/cpu{cpu}").exists() for n in nodes)}


def _bind_memory(nodes: list[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or max(nodes) >= _MAX_NODES:
        raise ValueError(f"proc_bind: membind={nodes} is not possible on this machine")
    mask = ctypes.c_ulong(sum(1 << node for node in set(nodes)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), _MAX_NODES + 1) and _NODES.exists():
        raise ValueError(f"proc_bind: membind={nodes}: {os.strerror(ctypes.get_errno())}")
