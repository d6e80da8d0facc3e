"""What starting an agent takes, wherever it runs: its boot record, and an environment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

Record = dict[str, Any]  # a JSON object

RANK_MAIN: Final = "monarch_nb.worker.main:run"
LIGHT: Final = ("IPython.core.interactiveshell", "cloudpickle")
"""What every rank needs."""
LIBRARIES: Final = ("torch", "numpy")
PRELOAD: Final = (*LIBRARIES, *LIGHT)
WHEN_IDLE: Final = {"torch": ("torch._dynamo", "torch._subclasses.schema_check_mode")}
"""What first uses of a loaded module import: torch's optimizers take a second, printing a tensor
some milliseconds. The zygote loads it when nobody has asked it for ranks for a while."""
LAST_LINES: Final = 20


@dataclasses.dataclass(frozen=True)
class AgentBoot:
    """What an agent is told at its start, by one JSON line on its standard input.

    `agent` and `controller` are process ids; `owner_pid` is the process whose death ends all, where
    it runs on the agent's host, and `owner_thread` the thread of it that starts the agent and lives
    as long as the process; `config` holds fields of `Config`. `main` is what ranks run
    (`module:function`), `preload` what the zygote imports besides before it forks, and with
    `loads_when_idle` later also what first uses of that import. A `prepare()` in main's module is
    called once in the zygote. `file_limit`: how many files ranks may open; None: as many as the
    agent when it is started. `interface` is the one by which other hosts reach this one; None where
    nobody knows.
    """

    run_dir: str
    agent: int
    controller: int
    owner_pid: int | None = None
    config: Record = dataclasses.field(default_factory=dict)
    main: str = RANK_MAIN
    preload: tuple[str, ...] = PRELOAD
    file_limit: int | None = None
    owner_thread: int | None = None
    interface: str | None = None
    loads_when_idle: bool = True

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> AgentBoot:
        """Read the record from its line. Raises `ValueError`, `TypeError` for anything else."""
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise TypeError(f"a boot record is a JSON object, not {line[:80]!r}")
        fields["preload"] = tuple(fields.get("preload", PRELOAD))
        return AgentBoot(**fields)

    @staticmethod
    def read(fd: int) -> AgentBoot:
        """Read the first line of `fd`, and not a byte more. Raises `EOFError` if there is none."""
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = os.read(fd, 1)
            if not byte:
                raise EOFError("the owner ended before it had said anything")
            line += byte
        return AgentBoot.from_line(bytes(line))

    def log_name(self) -> str:
        """Return the file in the run dir that takes what agent and zygote write to their stderr."""
        return f"{self.agent:016x}.log"


def how_it_ended(code: int | None) -> str:
    """Say how a process ended, by its code as `Popen` has it; None: nobody knows."""
    if code is None:
        return "ended"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def last_lines(text: str, count: int = LAST_LINES) -> str:
    return "\n".join(text.splitlines()[-count:])


def read_last(stream: IO[bytes]) -> str:
    """Read a stream to its end and return its last lines, however much came; close it."""
    found = b""
    with stream:
        while data := stream.read1(1 << 16):  # type: ignore[attr-defined]  # of a BufferedReader
            found = (found + data)[-(1 << 14) :]
    return last_lines(found.decode(errors="replace"))


def with_us(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment in which this very monarch_nb is found first, even where it is not
    installed."""
    home = str(Path(__file__).parents[2])
    if home == sysconfig.get_path("purelib"):
        return environment
    paths = [home, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
