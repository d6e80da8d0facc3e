"""`%mesh run`: a script on every rank, as `torchrun` would start it. `%mesh replay`: cells again.

Rule of the file: what stands before the script is ours, what follows it belongs to the script. The
first word that is neither an option nor could select ranks is the script.
"""

from __future__ import annotations

import argparse
import re
from typing import Final

from monarch_nb.notebook import options
from monarch_nb.notebook.cells import mesh_cell, replaying
from monarch_nb.notebook.cells.mesh_cell import MeshCell, Script
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

_SELECTION: Final = re.compile(r"all|@.*|[A-Za-z_]\w*=.*|[-\[\]0-9,:]+")


class _RunParser(Parser):
    """Reads its own words, and keeps the script with its arguments as they are."""

    def own(self, words: list[str]) -> list[str]:
        return words[: self._place_of_script(words)]

    def parse_args(self, words: list[str]) -> argparse.Namespace:
        place = self._place_of_script(words)
        chosen = super().parse_args(words[:place])
        run = options.one_mesh(self, chosen)
        rest = words[place:]
        is_module = rest[:1] == ["-m"]
        if len(rest) <= is_module:
            self.error("needs a module after -m" if is_module else "needs a script")
        name, *args = rest[is_module:]
        return argparse.Namespace(run=run, script=Script(name, args, is_module))

    def _place_of_script(self, words: list[str]) -> int:
        is_value = False
        for place, word in enumerate(words):
            option = self._option_string_actions.get(word)
            if is_value:
                is_value = False
            elif option is not None:
                is_value = option.nargs != 0
            elif word == "-m" or not (word.startswith("--") or _SELECTION.fullmatch(word)):
                return place
        return len(words)


_RUN: Final = _RunParser("%mesh run", "%mesh run train.py --epochs 3, or %mesh run -m pkg.train")
options.add_run_options(_RUN)
_RUN.set_defaults(local=False, fail_fast=False)


def _run(session: Session, chosen: argparse.Namespace) -> MeshCell | None:
    return mesh_cell.start(session, chosen.run, chosen.script)


_REPLAY: Final = Parser("%mesh replay", "%mesh replay, or %mesh replay 3-5 --ranks 2")
_REPLAY.add_argument("cells", nargs="?", type=options.ranks, metavar="CELLS")
_REPLAY.add_argument("--ranks", type=options.ranks, metavar="RANKS")
_REPLAY.add_argument("--name")


def _replay(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.control.whole(session.meshes.pick(chosen.name))
    say(replaying.replay(session, mesh, chosen.cells, chosen.ranks))


RUN: Final = Command(_RUN, _run, (
    ("run [SELECTION] train.py ARGS", "run a script on the ranks, as torchrun would"),
    ("    -m package.module ARGS", "the same for a module"),
    ("    [OPTIONS] train.py ARGS", "before the script: the options of %%mesh"),
))  # fmt: skip
REPLAY: Final = Command(_REPLAY, _replay, (
    ("replay [CELLS] [--name MESH]", "ranks that were started again run what cells have defined"),
    ("    3-5 --ranks 2", "these cells, on these ranks"),
))  # fmt: skip
