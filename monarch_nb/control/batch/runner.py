"""The process of a run: `python -m monarch_nb.control.batch.runner NAME`.

It belongs to no terminal. SIGTERM stops the run in order; when it is killed, the kernel ends, and
all ranks with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from monarch_nb.control.batch import notebook_file, run_record
from monarch_nb.control.batch.execution import Execution, Outcome
from monarch_nb.control.batch.run_record import FAILED, RunRecord
from monarch_nb.control.batch.transcript import Transcript
from monarch_nb.errors import MeshError


def main() -> None:
    """Do the run that was asked for under this name."""
    signal.signal(signal.SIGHUP, lambda *_: None)  # not SIG_IGN, which the kernel would inherit
    found = run_record.find(sys.argv[1])
    assert found is not None, "who has started it has written it"
    _Run(found.by_this_process()).do()


class _Run:
    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._transcript = Transcript(record.log)
        self._notebook = NotebookNode(metadata=NotebookNode())

    def do(self) -> None:
        try:
            outcome = asyncio.run(self._outcome())
        except (MeshError, OSError, ValueError) as error:
            outcome = Outcome(FAILED, str(error))
        self._end(outcome)

    async def _outcome(self) -> Outcome:
        self._notebook = notebook_file.read(Path(self._record.notebook))
        notebook_file.prepare(self._notebook, self._record.parameters)
        self._notebook.metadata.setdefault("kernelspec", NotebookNode())
        self._notebook.metadata.kernelspec.update(_kernelspec(self._record.kernel))
        self._become(cells=sum(map(notebook_file.is_code, self._notebook.cells)))
        notebook_file.write(self._notebook, Path(self._record.output))
        self._record.write()
        execution = Execution(self._record, self._notebook, self._transcript, self._begin_cell)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, execution.stop)
        return await execution.outcome()

    def _begin_cell(self, number: int) -> None:
        self._become(cell=number)
        self._record.write()

    def _become(self, **changes: Any) -> None:
        self._record = dataclasses.replace(self._record, **changes)
        told = self._notebook.metadata.setdefault("monarch_nb", NotebookNode())
        told["run"] = _metadata(self._record)

    def _end(self, outcome: Outcome) -> None:
        self._become(state=outcome.state, said=outcome.said, ended_s=time.time())
        if "cells" in self._notebook:  # it was read
            with contextlib.suppress(OSError):  # then it has failed of that
                notebook_file.write(self._notebook, Path(self._record.output))
        took = f"{time.time() - self._record.began_s:.1f} s"
        self._transcript.end(f"{outcome.state} after {took}: {outcome.said or self._record.output}")
        self._record.write()  # last: who follows reads no further


def _metadata(record: RunRecord) -> NotebookNode:
    told = {
        "name": record.name,
        "host": record.host,
        "notebook": record.notebook,
        "parameters": record.parameters,
        "on": record.on,
        "state": record.state,
        "said": record.said,
        "began": _utc(record.began_s),
        "ended": None if record.ended_s is None else _utc(record.ended_s),
    }
    return NotebookNode({name: value for name, value in told.items() if value not in ("", None)})


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _kernelspec(name: str) -> dict[str, str]:
    from jupyter_client.kernelspec import get_kernel_spec

    spec = get_kernel_spec(name)
    return {"name": name, "display_name": spec.display_name, "language": spec.language}


if __name__ == "__main__":
    main()
