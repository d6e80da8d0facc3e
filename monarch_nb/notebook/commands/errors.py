"""`%mesh errors`: the last failure of a cell, with nothing cut short."""

from __future__ import annotations

import argparse
from typing import Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.notebook import options
from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

_ERRORS: Final = Parser("%mesh errors", "%mesh errors, or %mesh errors 3")
_ERRORS.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")


def _errors(session: Session, chosen: argparse.Namespace) -> None:
    last = session.last_error
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


ERRORS: Final = Command(_ERRORS, _errors, (
    ("errors [RANKS]", "the last error of a cell in full, of all ranks or of these"),
))  # fmt: skip
