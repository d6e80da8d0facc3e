"""How a cell ended on its rank: what is told of it."""

from __future__ import annotations

import dataclasses
import sys

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire.messages.cells import CellOutcome


def outcome_of(error: BaseException | None, text: str | None, elapsed_s: float) -> CellOutcome:
    if error is None:
        return CellOutcome("ok", text=text, elapsed_s=elapsed_s)
    # where pdb and %debug look for the last error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    record = ErrorRecord.from_exception(error)
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
    return CellOutcome(status, record, text=text, elapsed_s=elapsed_s)


def forget_last_error() -> None:
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def explain_exit(outcome: CellOutcome) -> CellOutcome:
    record = outcome.error
    if record is None or record.ename != "SystemExit":
        return outcome
    said = f"the cell called sys.exit({record.evalue}); the rank lives on"
    return outcome._replace(error=dataclasses.replace(record, evalue=said))
