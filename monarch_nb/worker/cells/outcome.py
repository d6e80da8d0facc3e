"""How a cell ended on its rank: what is told of it."""

from __future__ import annotations

import dataclasses
import sys
from typing import Literal

from monarch_nb.core.errors.records import ErrorRecord


@dataclasses.dataclass(frozen=True, slots=True)
class CellOutcome:
    """How a cell ended. `value` is that of its last expression, if it had one, `result_text` its
    plain text."""

    status: Literal["ok", "error", "interrupted"]
    error: ErrorRecord | None = None
    result_text: str | None = None
    elapsed_s: float = 0.0
    value: object = None


def outcome_of(error: BaseException | None, text: str | None, elapsed_s: float) -> CellOutcome:
    if error is None:
        return CellOutcome("ok", None, text, elapsed_s)
    # where pdb and %debug look for the last error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    record = ErrorRecord.from_exception(error)
    interrupted = isinstance(error, KeyboardInterrupt)
    return CellOutcome("interrupted" if interrupted else "error", record, text, elapsed_s)


def forget_last_error() -> None:
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def explain_exit(outcome: CellOutcome) -> CellOutcome:
    record = outcome.error
    if record is None or record.ename != "SystemExit":
        return outcome
    said = f"the cell called sys.exit({record.evalue}); the rank lives on"
    return dataclasses.replace(outcome, error=dataclasses.replace(record, evalue=said))
