"""`%mesh logs`: what ranks have written, also what the notebook has not shown; `%mesh errors`: the
last failure of a cell, with nothing cut short; `%mesh watch`: be told when a cell ends."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from monarch_nb.control.output.log_times import clock_text
from monarch_nb.core.errors.folding import rank_runs, rank_words
from monarch_nb.core.text.lines import Throttle
from monarch_nb.core.text.stream_folder import Written, folded
from monarch_nb.core.text.units import duration
from monarch_nb.notebook import options, tracebacks
from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import Logbook
    from monarch_nb.control.output.failure_history import Failure

TAIL: Final = 20
NOTHING: Final = "ranks have written nothing yet"
NO_PAGE: Final = "only a cell that runs in JupyterLab can tell you that it has ended"

_LOGS: Final = Parser("%mesh logs", "%mesh logs, or %mesh logs 0-3 --tail 50 --grep loss")
_LOGS.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_LOGS.add_argument("--grep", type=options.regex, metavar="REGEX")
_LOGS.add_argument("--tail", type=options.count, metavar="N", default=TAIL)
_LOGS.add_argument("--cell", type=options.count, metavar="N")
_LOGS.add_argument("--times", action="store_true")
_LOGS.add_argument("--name")

_ERRORS: Final = Parser("%mesh errors", "%mesh errors, or %mesh errors 3")
_ERRORS.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_ERRORS.add_argument("--history", action="store_true")

_WATCH: Final = Parser("%mesh watch", "%mesh watch")


def _logs(session: Session, chosen: argparse.Namespace) -> None:
    book = session.control.logbook()
    if book is None or not book.meshes():
        say(NOTHING)
        return
    name = _mesh(session, book, chosen.name)
    tags = None if chosen.cell is None else _tags(session, chosen.cell)
    size = book.meshes()[name]
    ranks = range(size) if chosen.ranks is None else chosen.ranks
    if missing := sorted(set(ranks).difference(range(size))):
        raise MagicError(
            f"{name} has no {rank_words(missing)}; its ranks are {rank_runs(range(size))}"
        )
    book.flush()
    lines = [
        Written(rank, f"{clock_text(line.at)} {line.text}" if chosen.times else line.text, line.at)
        for rank in ranks
        for line in book.last(name, rank, chosen.tail, chosen.grep, tags)
    ]
    # no more than a notebook can take at once
    text = folded(lines, size, Throttle(refill_per_s=0.0))
    say(f"{text or _none(chosen, ranks)}whole logs of {name}: {book.folder}")


def _mesh(session: Session, book: Logbook, wanted: str | None) -> str:
    # The mesh whose logs are meant; it may be down by now
    known = book.meshes()
    name = wanted or session.meshes.current
    if name is not None and name in known:
        return name
    if wanted is not None:
        raise MagicError(f"no rank of {wanted!r} has written anything; logs: {', '.join(known)}")
    return next(reversed(list(known)))


def _tags(session: Session, number: int) -> list[int]:
    if tags := session.cells.tags(number):
        return tags
    raise MagicError(f"there is no cell In[{number}] in this session. Type: %mesh logs")


def _none(chosen: argparse.Namespace, ranks: Iterable[int]) -> str:
    found = rank_words(ranks)
    matching = f" that matches {chosen.grep.pattern!r}" if chosen.grep else ""
    by = f" of cell In[{chosen.cell}]" if chosen.cell else ""
    return f"no line of {found}{by}{matching}\n"


def _errors(session: Session, chosen: argparse.Namespace) -> None:
    if chosen.history:
        say(_history(session, chosen.ranks))
        return
    last = session.cells.last_error
    if last is None:
        say("no cell has failed on the ranks yet")
        return
    wanted = last.ranks if chosen.ranks is None else chosen.ranks
    if missing := sorted(set(wanted).difference(last.ranks)):
        failed = f"only {rank_words(last.ranks)}" if last.ranks else "nothing"
        raise MagicError(f"{rank_words(missing)} did not fail in that cell, {failed} did")
    if not last.errors:
        say(last.traceback)
        return
    errors = {rank: last.errors[rank] for rank in wanted}
    say(wording.traceback(session.shell, errors, last.total, in_full=True))


def _watch(session: Session, _: argparse.Namespace) -> None:
    running = session.cells.running
    is_next = running is not None and _only_watches(running.source)
    if session.cells.watch(is_next=is_next):
        session.live.notify(urgent=True)  # the cell may be short
        say(f"you will be told when {'the next' if is_next else 'this'} cell ends")
    else:
        say(NO_PAGE)


def _only_watches(source: str) -> bool:
    # A cell that does nothing else ends at once: it is not the one that is meant
    lines = [line.partition("#")[0].split() for line in source.splitlines()]
    return all(words == ["%mesh", "watch"] for words in lines if words)


def _history(session: Session, wanted: Iterable[int] | None) -> str:
    client = session.control.running_client()
    known = client.failures.everything() if client else ()
    ranks = None if wanted is None else set(wanted)
    told = [
        _past(session, mesh, failure, became)
        for mesh, failure, became in known
        if ranks is None or ranks.intersection(failure.ranks)
    ]
    return "\n\n".join(told) or "nothing has failed on the ranks yet"


def _past(session: Session, mesh: str, failure: Failure, became: str) -> str:
    # `14:03:22.123, 3 min ago, mesh0 rank 3, cell In[4]`, what it was, and what became of it
    record, shell = failure.record, session.shell
    ago = f"{duration(time.monotonic() - failure.at)} ago"
    who = f"{mesh} {rank_words(failure.ranks)}"
    head = ", ".join(filter(None, (clock_text(failure.came_at), ago, who, failure.what)))
    lines = record.format(
        partial(tracebacks.line_of_cell, shell), partial(tracebacks.name_of_cell, shell)
    )
    wrote = [f"    {line}" for line in failure.lines]
    said = [f"  what rank {failure.writer} had written:", *wrote] if wrote else []
    told = [*(f"  {line}" for line in "\n".join(lines).splitlines()), *said]
    return "\n".join([head, *told, *([f"  {became}"] if became else [])])


LOGS: Final = Command(_LOGS, _logs, (
    ("logs [RANKS] [--tail N]", "the last lines that ranks have written, also what was hidden"),
    ("logs --grep REGEX --cell 7", "those lines that match, those of the cell In[7]"),
    ("    --times", "with the time at which each line came"),
))  # fmt: skip
ERRORS: Final = Command(_ERRORS, _errors, (
    ("errors [RANKS]", "the last error of a cell in full, of all ranks or of these"),
    ("    --history", "all that has failed, also what was healed since, with its time"),
))  # fmt: skip
WATCH: Final = Command(_WATCH, _watch, (
    ("watch", "be told when this cell ends; alone in a cell: the next one"),
))  # fmt: skip
