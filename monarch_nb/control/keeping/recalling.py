"""What ranks have printed before this process drove them, read from their logs: curves, the logs of
ranks, and the output of cells that go on, in order, each line once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.core.wire.frames import OUTPUT, OUTPUT_PORT, Message
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import RawOutput
from monarch_nb.data.record_log import LogRecord, output_log, read_log

if TYPE_CHECKING:
    from monarch_nb.control.output.routing import OutputService


def recall(
    output: OutputService,
    run_dir: Path,
    logged: Mapping[int, int],
    raw: tuple[int, int],
    tags: Mapping[int, int],
) -> None:
    """Hand on what is in the logs, then what has come since, which `hold` has kept back.

    Args:
        logged: of each process, how many records came before it was driven by this one.
        raw: the agent, and how many it had logged of what ranks have written to their descriptors.
        tags: of cells whose output is shown: what they are called here.
    """
    agent, count = raw
    written: dict[int, list[tuple[LogRecord, RawOutput | None]]] = {}
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


def _first(path: Path, count: int) -> Iterator[LogRecord]:
    return (record for record in read_log(path) if record.number < count)
