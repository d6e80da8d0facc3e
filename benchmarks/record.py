"""A run on disk: `RESULTS.json` grows with every outcome, so that an interrupted run is no loss.

RESULTS.md is rendered from it, now or later. Logs are not kept.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.catalog import MEASURES
from benchmarks.report import Run
from benchmarks.runner import Outcome


def save(run: Run, path: Path) -> None:
    outcomes = [
        {
            "system": system,
            "measure": measure,
            "figures": dict(outcome.figures),
            "error": outcome.error,
            "left": outcome.left,
        }
        for (system, measure), found in run.outcomes.items()
        for outcome in found
    ]
    record = {
        "begun": run.begun.isoformat(),
        "load": run.load,
        "machine": run.machine,
        "systems": list(run.systems),
        "measures": [measure.name for measure in run.measures],
        "versions": run.versions,
        "remarks": list(run.remarks),
        "outcomes": outcomes,
    }
    whole = path.with_suffix(".tmp")
    whole.write_text(json.dumps(record, indent=1) + "\n")
    whole.replace(path)


def load(path: Path) -> Run:
    """The run that was saved. Raises `OSError`, `ValueError` for a file that is none."""
    record: dict[str, Any] = json.loads(path.read_text())
    by_name = {measure.name: measure for measure in MEASURES}
    run = Run(
        systems=record["systems"],
        measures=[by_name[name] for name in record["measures"]],
        versions=record["versions"],
        remarks=record["remarks"],
        begun=datetime.fromisoformat(record["begun"]),
        load=record["load"],
        machine=record["machine"],
    )
    for one in record["outcomes"]:
        outcome = Outcome(one["figures"], one["error"], one["left"])
        run.outcomes.setdefault((one["system"], one["measure"]), []).append(outcome)
    return run
