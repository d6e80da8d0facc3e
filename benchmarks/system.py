"""What every system's module does when it is started: run measures, print one JSON object.

    python -m benchmarks.systems.ray_ --json call,flight [--quick]

Only that object reaches standard output; whatever the system itself prints goes to standard error.
"""

import argparse
import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks.measures import Measure, Scale, Up, own

STACKS_S = 2.0


def main(
    measures: dict[str, Measure], up: Up | None = None, close: Callable[[], Any] | None = None
) -> None:
    options = _options()
    faulthandler.enable()
    if options.deadline:
        faulthandler.dump_traceback_later(max(0.1, options.deadline - STACKS_S))
    if options.own and up:
        own(up, options.own)
        return
    out = os.dup(1)
    os.dup2(2, 1)
    scale = Scale.quick() if options.quick else Scale()
    results = {name: _measured(measures, name, scale) for name in options.json.split(",")}
    os.write(out, json.dumps({"results": results}).encode() + b"\n")
    if close:
        close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", default="", metavar="MEASURE,...", help="measures to run")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--deadline", type=float, metavar="S", help="show stacks shortly before")
    parser.add_argument("--own", metavar="FLAG", help="own busy ranks until killed")
    return parser.parse_args()


def _measured(measures: dict[str, Measure], name: str, scale: Scale) -> dict[str, Any]:
    if name not in measures:
        return {"error": f"no such measure; there are {', '.join(measures)}"}
    try:
        return {"figures": measures[name](scale)}
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return {"error": f"{type(error).__name__}: {error}".strip()}
