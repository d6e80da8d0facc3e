"""What ranks have printed before this process drove them, read from their logs: curves, the logs of
ranks, and the output of cells that go on, in order, each line once."""

from __future__ import annotations

import base64
import contextlib
import heapq
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monarch_nb.core.wire.frames import OUTPUT, OUTPUT_PORT, Message
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import RawOutput
from monarch_nb.core.wire.messages.keeping import LogPart, ReadLog
from monarch_nb.data.record_log import LogRecord, output_log, read_log
from monarch_nb.process.futures.ask_all import Question

if TYPE_CHECKING:
    from monarch_nb.control.output.routing import OutputService
    from monarch_nb.process.process import Proc

_PART_S: Final = 30.0


def recall(
    output: OutputService,
    run_dir: Path,
    logged: Mapping[int, int],
    raw: Mapping[int, int],
    tags: Mapping[int, int],
) -> None:
    """Hand on what is in the logs, then what has come since, which `hold` has kept back.

    Args:
        logged: of each process, how many records came before it was driven by this one.
        raw: of each agent, how many it had logged of what ranks have written to their descriptors.
        tags: of cells whose output is shown: what they are called here.
    """
    output.rename(tags)
    written: dict[int, list[tuple[LogRecord, RawOutput | None]]] = {}
    for agent, count in raw.items():
        for record in _first(output_log(run_dir, agent), count):
            raw_output = codec.decode(RawOutput, codec.json_of(record.payload))
            written.setdefault(raw_output.proc, []).append((record, raw_output))
    for process, many in logged.items():
        printed = ((record, None) for record in _first(output_log(run_dir, process), many))
        tag = 0
        for record, found in heapq.merge(
            printed, written.get(process, ()), key=lambda each: each[0].at_s
        ):
            if found is not None:
                output.recall_raw(found, tag, shown=bool(tag))
                continue
            tag = tags.get(record.tag, 0)
            if record.port == OUTPUT_PORT:
                header = (OUTPUT, 0, 0, 0, tag, record.port, process, 0)
                output.recall(Message(header, memoryview(record.payload)), shown=bool(tag))
        output.go_on(process)


@contextlib.contextmanager
def copied(proc: Proc, process: int, agent: int, run_dir: Path) -> Iterator[None]:
    """Have a copy of what a process of another host has logged in the run dir of this one, as its
    agent reads it. What that does not send any more is left out."""
    path = output_log(run_dir, process)
    with path.open("wb") as copy:  # the folder is private
        for part in _parts(proc, process, agent):
            copy.write(part)
    yield
    path.unlink(missing_ok=True)


def _parts(proc: Proc, process: int, agent: int) -> Iterator[bytes]:
    while True:
        part = Question(proc, {agent: ReadLog(process)}).wait(_PART_S).get(agent)
        if not isinstance(part, LogPart) or part.is_last:
            return
        yield base64.b64decode(part.records)


def _first(path: Path, count: int) -> Iterator[LogRecord]:
    return (record for record in read_log(path) if record.number < count)
