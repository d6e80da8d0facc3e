"""Runs on disk: `RESULTS.json` grows with every outcome, so that an interrupted run is no loss.

RESULTS.md is rendered from it, now or later. Logs are not kept.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.catalog import MEASURES
from benchmarks.report import Run
from benchmarks.runner import Outcome


def save(runs: Sequence[Run], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".tmp")
    whole.write_text(json.dumps([_record(run) for run in runs], indent=1) + "\n")
    whole.replace(path)


def load(path: Path) -> list[Run]:
    """The runs that were saved. Raises `OSError`, `ValueError` for a file that is none."""
    return [_run(record) for record in json.loads(path.read_text())]


def _record(run: Run) -> dict[str, Any]:
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
    return {
        "begun": run.begun.isoformat(),
        "load": run.load,
        "machine": run.machine,
        "systems": list(run.systems),
        "measures": [measure.name for measure in run.measures],
        "versions": run.versions,
        "remarks": list(run.remarks),
        "outcomes": outcomes,
    }


def _run(record: dict[str, Any]) -> Run:
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
