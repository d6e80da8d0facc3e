"""`monarch-nb status | logs | stacks | vars` and `debug --list`, as they are typed in a terminal.

Rule: they ask (`kernels.py`) and show (`as_text.py`), or print the answer as JSON for programs, and
change nothing. What goes wrong begins with one line that says what to type.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from monarch_nb.control.inspection import kernels
from monarch_nb.control.inspection.asked import MAX_LINES, SCHEMA, Asked
from monarch_nb.control.inspection.kernels import Told
from monarch_nb.control.jobs.kept.visiting import AskError
from monarch_nb.control.output.log_times import clock_text
from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.selection import SelectionError, read_ranks
from monarch_nb.core.text.lines import Throttle
from monarch_nb.core.text.stream_folder import Written, folded
from monarch_nb.host.rundir import Owner

_TAIL: Final = 20
_NOT_ANSWERED: Final = 1


def add_commands(commands: Any) -> None:
    """Add the commands to those of `monarch-nb`."""
    status = commands.add_parser("status", help="what the ranks of running kernels do")
    status.add_argument("--each", action="store_true", help="a row for each rank")
    status.set_defaults(run=_status)
    logs = commands.add_parser("logs", help="what ranks have written")
    logs.add_argument("--tail", type=_count, default=_TAIL, metavar="N", help="lines of each rank")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    logs.add_argument("--times", action="store_true", help="when each line came")
    logs.set_defaults(run=_logs)
    stacks = commands.add_parser("stacks", help="where ranks are in their code")
    stacks.set_defaults(run=_stacks)
    variables = commands.add_parser("vars", help="the variables of ranks, and where they differ")
    variables.set_defaults(run=_vars)
    for each in (logs, stacks, variables):
        each.add_argument("mesh", nargs="?", metavar="MESH")
        each.add_argument("--ranks", type=_ranks, metavar="RANKS", help="as 3 or 0,2 or 0-3")
    for each in (status, logs, stacks, variables):
        each.add_argument("--kernel", type=int, metavar="PID", help="where several run")
        each.add_argument("--json", action="store_true", help="for programs: docs/terminal.md")


def debug_list(chosen: argparse.Namespace) -> int:
    """Show who is stopped in a debugger. Returns the exit code."""
    told = kernels.ask(Asked("stops"), kernels.all_owners(chosen.pid))
    return _show(chosen, "debug", told)


def _status(chosen: argparse.Namespace) -> int:
    told = kernels.ask(Asked("status", each=chosen.each), kernels.all_owners(chosen.kernel))
    return _show(chosen, "status", told)


def _stacks(chosen: argparse.Namespace) -> int:
    return _show(chosen, "stacks", [_one(chosen, Asked("stacks", chosen.mesh, chosen.ranks))])


def _vars(chosen: argparse.Namespace) -> int:
    return _show(chosen, "vars", [_one(chosen, Asked("vars", chosen.mesh, chosen.ranks))])


def _show(chosen: argparse.Namespace, command: str, told: Sequence[Told]) -> int:
    if chosen.json:
        _print_json(command, told)
    else:
        from monarch_nb.control.inspection import as_text  # rich, which programs do not wait for

        as_text.show(command, told)
    return _NOT_ANSWERED if any(each.error for each in told) else 0


def _logs(chosen: argparse.Namespace) -> int:
    asked = Asked("logs", chosen.mesh, chosen.ranks, chosen.tail, chosen.follow)
    if chosen.follow:
        return _follow(asked, kernels.choose(chosen.mesh, chosen.kernel), chosen)
    told = _one(chosen, asked)
    if chosen.json:
        _print_json("logs", [told])
        return 0
    answer = told.answer or {}
    lines = _folded(answer["lines"], answer["size"], times=chosen.times)
    _say(lines or f"no line{_of(asked)} of {answer['mesh']}\n")
    if answer["left_out"]:
        _tell(f"... {answer['left_out']} earlier lines left out ...\n")
    _tell(f"whole logs of {answer['mesh']}: {answer['folder']}\n")
    return 0


def _of(asked: Asked) -> str:
    return "" if asked.ranks is None else f" of {rank_words(asked.ranks)}"


def _folded(lines: Sequence[Mapping[str, Any]], size: int, *, times: bool) -> str:
    # as cells show them: labelled, equal ones once; a kernel of an older version tells no times
    written = []
    for each in lines:
        at = each.get("at")
        came = f"{clock_text(at)} " if times else ""
        written.append(Written(each["rank"], f"{came}{each['text']}", at))
    return folded(written, size, Throttle(burst=math.inf))


def _one(chosen: argparse.Namespace, asked: Asked) -> Told:
    [told] = kernels.ask(asked, [kernels.choose(chosen.mesh, chosen.kernel)])
    if told.error is not None:
        raise AskError(told.error)
    return told


def _follow(asked: Asked, owner: Owner, chosen: argparse.Namespace) -> int:
    for answer in kernels.answers(asked, owner):
        if answer["left_out"]:
            _tell(f"... {answer['left_out']} lines left out, the logs have them ...\n")
        if chosen.json:
            who = {"schema": SCHEMA, "command": "logs", "pid": owner.pid, "mesh": answer["mesh"]}
            _say("".join(f"{json.dumps({**who, **each})}\n" for each in answer["lines"]))
        else:
            _say(_folded(answer["lines"], answer["size"], times=chosen.times))
    _tell(f"process {owner.pid} has ended\n")
    return 0


def _print_json(command: str, told: Sequence[Told]) -> None:
    whole = {
        "schema": SCHEMA,
        "command": command,
        "at": round(time.time(), 3),
        "kernels": [each.to_json() for each in told],
    }
    _say(f"{json.dumps(whole, indent=2 if sys.stdout.isatty() else None)}\n")


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return read_ranks(text)
    except SelectionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_LINES:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MAX_LINES}")
    return int(text)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _tell(text: str) -> None:
    # beside the lines, not among them
    sys.stderr.write(text)
