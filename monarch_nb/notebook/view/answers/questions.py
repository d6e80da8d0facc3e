"""What a browser may ask: each question is a function of the source and its arguments.

They run in a thread of their own and may wait for ranks, within the limit of each. What is asked of
a mesh or a rank that is gone raises `ValueError` with a sentence.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from monarch_nb.control.engines import ENGINES, NAMED
from monarch_nb.control.jobs import profiles
from monarch_nb.core.errors.folding import fold_outputs, rank_list
from monarch_nb.core.hangs.stack_tree import tree
from monarch_nb.core.runs import as_csv, rows
from monarch_nb.notebook.view.answers import rank_variables
from monarch_nb.notebook.view.answers.pending_requests import Work
from monarch_nb.notebook.view.answers.source import NO_ANSWER, Source
from monarch_nb.notebook.view.browser.protocol import Args, Ask
from monarch_nb.notebook.view.feed.encoding import MAX_HEADLINE, MAX_WHAT, Json, number, plain
from monarch_nb.notebook.view.feed.feed import Feed

if TYPE_CHECKING:
    from monarch_nb.control.api import KeptRecord
    from monarch_nb.control.output.failure_history import Failure
    from monarch_nb.control.output.tail import Line
    from monarch_nb.control.status.snapshots import MeshStatus, RankStatus, Snapshot
    from monarch_nb.notebook.view.feed.inputs import Nothing

ANSWER_S: Final = 2.0
LINES: Final = 20
MAX_POINTS: Final = 512
MAX_ROWS: Final = 200_000


class Context(NamedTuple):
    """What questions are answered from."""

    source: Source
    feed: Feed


class Question(NamedTuple):
    """`limit_s`: within which it is answered, if only by `late`."""

    answer: Callable[[Context, Args], object]
    limit_s: float
    late: str


def work_of(context: Context, ask: Ask) -> Work:
    """Return what it takes to answer this."""
    question = QUESTIONS[ask.what]
    return Work(lambda: question.answer(context, ask.args), question.limit_s, question.late)


def silence(rank: int) -> str:
    """Return why a rank may not have answered."""
    return (
        f"rank {rank} did not answer within {ANSWER_S:g} s: it holds the GIL in C code or is "
        "stopped"
    )


def _rank(context: Context, args: Args) -> Json:
    # All about one rank; what only the rank can tell is missing where it does not answer
    source, name, rank = context.source, args["mesh"], args["rank"]
    mesh, status, snapshot = _status(source, name, rank)
    lives = mesh.ended is None and status.state not in NO_ANSWER
    actors = source.actors(name, rank, ANSWER_S) if lives else ()
    detail = status.detail or (silence(rank) if actors is None else "")
    host = snapshot.hosts[status.host].name if status.host < len(snapshot.hosts) else ""
    return {
        "rank": rank,
        "coords": dict(status.coords),
        "pid": status.pid,
        "host": plain(host, MAX_WHAT),
        "state": status.state,
        "what": plain(status.what, MAX_WHAT),
        "since": max(context.feed.clock(status.since), 1) if status.since else 0,
        "detail": plain(detail),
        "actors": [_actor(each) for each in actors or ()],
        "error": _last_error(context, name, rank),
        "lines": [
            plain(line.text) for line in source.lines(name, [rank], LINES, number=mesh.number)
        ],
        "queue": status.queue,
    }


def _status(
    source: Source, name: str, rank: int
) -> tuple[MeshStatus, RankStatus, Snapshot | Nothing]:
    snapshot = source.snapshot()
    found = [mesh for mesh in snapshot.meshes if mesh.name == name]
    living = [mesh for mesh in found if mesh.ended is None]
    if not found:
        raise ValueError(f"there is no mesh {plain(name, MAX_WHAT)!r} any more")
    mesh = (living or found)[-1]
    if rank >= len(mesh.ranks):
        raise ValueError(f"{name} has no rank {rank} any more; it has {len(mesh.ranks)} ranks")
    return mesh, mesh.ranks[rank], snapshot


def _actor(told: Mapping[str, object]) -> Json:
    current = told.get("current")
    return {
        "name": plain(told["name"], MAX_WHAT),
        "cls": plain(told["cls"], MAX_WHAT),
        "calls": told["calls"],
        "failed": told["failed"],
        "queue": told["queue"],
        "current": None if current is None else plain(current, MAX_WHAT),
    }


def _last_error(context: Context, name: str, rank: int) -> Json | None:
    failures = context.source.failures(name)
    failure = next((each for each in failures if rank in each.ranks), None)
    if failure is None:
        return None
    told = _told(context, failure)
    return {key: told[key] for key in ("headline", "text", "what", "at")}


def _told(context: Context, failure: Failure) -> Json:
    return {
        "id": failure.id,
        "ranks": rank_list(failure.ranks),
        "headline": plain(failure.record.headline, MAX_HEADLINE),
        "text": plain(context.source.traceback(failure.record)),
        "what": plain(failure.what, MAX_WHAT),
        "at": context.feed.clock(failure.at),
        "count": failure.count,
        "lines": [plain(line) for line in failure.lines],
    }


def _failure(context: Context, args: Args) -> Json:
    source, mesh = context.source, args["mesh"]
    past = [each.failure for each in source.past_failures(mesh)]
    for failure in (*source.failures(mesh), *past):
        if failure.id == args["failure"]:
            return _told(context, failure)
    raise ValueError("this failure is not kept any more; %mesh errors has that of the last cell")


def _stacks(context: Context, args: Args) -> Json:
    ranks = args["ranks"] or ()
    found = context.source.stacks(args["mesh"], ranks)
    texts = {rank: plain(context.source.words(stacks)) for rank, stacks in found.items()}
    groups = fold_outputs(texts)
    stacks = [{"ranks": rank_list(each.ranks), "text": texts[each.ranks[0]]} for each in groups]
    silent = set(ranks).difference(found)
    named = _named(context, tree(found).to_json())
    return {"stacks": stacks, "silent": rank_list(silent), "tree": named}


def _named(context: Context, node: dict[str, Any]) -> Json:
    if "frame" in node:
        node["frame"]["file"] = context.source.name(node["frame"]["file"])
    for child in node["children"]:
        _named(context, child)
    return node


def _logs(context: Context, args: Args) -> Json:
    # Who follows from here misses nothing, and may see lines again
    last = context.source.last_line()
    lines = context.source.lines(
        args["mesh"], args["ranks"], args["count"], args["pattern"], args["level"], args["before"]
    )
    return {"lines": [row(line) for line in lines], "last": last}


def _whole_logs(context: Context, args: Args) -> Json:
    text, after = context.source.log_part(args["mesh"], args["ranks"], args["after"])
    return {"text": text, "after": after}


def row(line: Line) -> list[object]:
    """Return a line of the log, as browsers get it."""
    return [
        line.seq,
        plain(line.mesh, MAX_WHAT),
        line.rank,
        line.stream,
        line.level,
        plain(line.text),
        round(line.at * 1000),
    ]


def _curve(context: Context, args: Args) -> Json:
    curve = context.source.curves(args["mesh"]).get(args["name"])
    if curve is None:
        raise ValueError(f"{args['mesh']} has no curve {plain(args['name'], MAX_WHAT)!r}")
    points = list(curve.of(args["rank"]))
    stride = -(-len(points) // MAX_POINTS) or 1
    kept = points[::-1][::stride][::-1]  # the last one always
    return {"points": [[number(step), number(value)] for step, value in kept]}


def _metrics(context: Context, args: Args) -> Json:
    # the newest, where there are more than a page should load
    found = list(rows(context.source.runs(args["mesh"]), name=args["name"]))
    kept = found[-MAX_ROWS:]
    return {"csv": as_csv(kept), "left_out": len(found) - len(kept)}


def _cell(context: Context, args: Args) -> Json:
    found = context.source.cell_id(args["number"])
    if found is None:
        raise ValueError(f"cell In[{args['number']}] is not one of this page's")
    return {"id": found}


def _outputs(context: Context, args: Args) -> Json:
    return {"cells": list(context.source.outputs(args["since"] / 1000))}


def _debugger(context: Context, _: Args) -> Json:
    choice = context.source.debugged()
    return {"whom": choice.whom, "mesh": choice.mesh, "ranks": rank_list(choice.ranks)}


def _engines(_: Context, __: Args) -> Json:
    # Where `%mesh up --on` can have ranks
    return {
        "engines": [
            {
                "name": name,
                "missing": plain(engine.missing()),
                "options": list(engine.options),
                "required": list(engine.required),
                "places": engine.has_places,
            }
            for name in NAMED
            for engine in [ENGINES[name]]
        ],
        "profiles": [
            {"name": plain(name, MAX_WHAT), "words": plain(_joined(words))}
            for name, words in profiles.usable().items()
        ],
    }


def _joined(words: list[str]) -> str:
    return shlex.join(words[:-1] if words[-1] == "--" else words)


def _kept(context: Context, _: Args) -> Json:
    # What has outlived its kernel, or is driven by another one
    return {"kept": [_kept_record(each) for each in context.source.kept_meshes()]}


def _kept_record(record: KeptRecord) -> Json:
    return {
        "names": [plain(mesh.name, MAX_WHAT) for mesh in record.meshes],
        "ranks": sum(math.prod(mesh.sizes.values()) for mesh in record.meshes),
        "driven_by": record.controller_pid if record.is_driven() else None,
        "for_s": record.for_s,
    }


def _replay(context: Context, args: Args) -> Json:
    # What ranks that were started again have to run; nothing where they lack nothing
    offer = context.source.replay(args["mesh"])
    if offer is None:
        return {"line": "", "cells": "", "ranks": ""}
    return {"line": offer.typed, "cells": offer.cells, "ranks": rank_list(offer.ranks)}


def _variables(context: Context, args: Args) -> Json:
    return rank_variables.told(context.source, args["mesh"], args["name"])


def _window(context: Context, args: Args) -> Json:
    place = args["indices"], args["row"], args["column"]
    return rank_variables.window(context.source, args["mesh"], args["rank"], args["name"], *place)


def _picture(context: Context, args: Args) -> Json:
    mesh, rank, name = args["mesh"], args["rank"], args["name"]
    return rank_variables.picture(context.source, mesh, rank, name, args["indices"])


_SLOW: Final = f"nothing was found within {5 * ANSWER_S:g} s; ask for less"

QUESTIONS: Final = {
    "rank": Question(_rank, 2 * ANSWER_S, "the rank has told nothing; %mesh status says more"),
    "failure": Question(_failure, 5 * ANSWER_S, _SLOW),
    "stacks": Question(_stacks, 2 * ANSWER_S, "the ranks' hosts do not answer"),
    "logs": Question(_logs, 5 * ANSWER_S, _SLOW),
    "whole_logs": Question(_whole_logs, 10 * ANSWER_S, "the disk is too slow; see %mesh logs"),
    "curve": Question(_curve, 5 * ANSWER_S, _SLOW),
    "metrics": Question(_metrics, 5 * ANSWER_S, _SLOW),
    "cell": Question(_cell, ANSWER_S, _SLOW),
    "outputs": Question(_outputs, 5 * ANSWER_S, _SLOW),
    "debugger": Question(_debugger, ANSWER_S, _SLOW),
    "engines": Question(_engines, 5 * ANSWER_S, _SLOW),
    "kept": Question(_kept, 5 * ANSWER_S, _SLOW),
    "replay": Question(_replay, 5 * ANSWER_S, _SLOW),
    "variables": Question(_variables, 5 * ANSWER_S, _SLOW),
    "window": Question(_window, 5 * ANSWER_S, _SLOW),
    "picture": Question(_picture, 5 * ANSWER_S, _SLOW),
}
