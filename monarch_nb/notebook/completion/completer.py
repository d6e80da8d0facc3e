"""Help while typing: completions and inspection of cells, from the ranks that will run them.

Rules of the file: an answer is there within 0.3 s, whatever ranks, the mesh and the kernel do. The
first rank of the cell that owes no answer is asked and has `ANSWER_S`; else the answer is what was
known of it before and what cells have named. It reads the session from any thread and changes
nothing in it. What ranks say is text, never markup. Two methods of IPython and ipykernel are
covered on their instances, because the public ways do not do: a matcher cannot say "nothing"
without the controller's names taking its place, and inspection is never told the cell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from IPython.core.completer import Completion, IPCompleter, provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.tokenutil import token_at_cursor

from monarch_nb.core.shape import selection
from monarch_nb.core.wire.messages import cells as messages
from monarch_nb.core.wire.messages.codec import Refused, Request
from monarch_nb.errors import MeshError
from monarch_nb.notebook import options
from monarch_nb.notebook.cells.auto_transform import AutoTransform
from monarch_nb.notebook.completion import seen_names
from monarch_nb.notebook.completion.mesh_words import (
    Match,
    MeshLine,
    RankCode,
    Word,
    Words,
    place_of,
)
from monarch_nb.notebook.completion.seen_names import SeenNames
from monarch_nb.notebook.meshes import Meshes
from monarch_nb.notebook.shells import Kernel, kernel_of

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, ProcMesh

ANSWER_S: Final = 0.2
MAX_TEXTS: Final = 200  # answers about names that are kept

Where = tuple[str, int]  # mesh and rank
A = TypeVar("A")


class Help:
    """Answers for the cells of one session."""

    def __init__(
        self,
        shell: InteractiveShell,
        control: Control,
        meshes: Meshes,
        auto: AutoTransform,
        seen: SeenNames,
    ) -> None:
        self._shell = shell
        self._control = control
        self._meshes = meshes
        self._auto = auto
        self._seen = seen
        self._words = Words(meshes, self._variables)
        self._names: dict[Where, dict[str, str]] = {}
        self._texts: dict[tuple[str, int, str], str | None] = {}
        self._owing: set[Where] = set()
        self._asking = threading.Lock()

    def complete(self, cell: str, offset: int) -> list[Match] | None:
        """Return completions at an offset of a cell; None in code of the controller's."""
        place = place_of(cell, offset, self._auto.line_for)
        if isinstance(place, MeshLine):
            return self._words.complete(place)
        return None if place is None else self._of_code(place)

    def inspect(self, cell: str, offset: int, detail: int) -> dict[str, str | None] | None:
        """Return help on a name as `{"text": ...}`, None where nobody knows it or it is the
        controller's.
        """
        place = place_of(cell, offset, self._auto.line_for)
        if isinstance(place, MeshLine):
            magic = "%%mesh" if place.is_cell else "%mesh"
            return {"text": self._shell.object_inspect_mime(magic)["text/plain"]}
        return None if place is None else {"text": self._of_name(place, detail)}

    # ---------------------------------------------------------------------------- completions

    def _of_code(self, place: RankCode) -> list[Match]:
        mesh, ranks = self._mesh_and_ranks(place.line)
        answer = self._ask(mesh, ranks, messages.Complete(place.code, place.cursor))
        found = [] if answer is None else list(_matches(answer.matches, place.start))
        there = {match.text for match in found}
        typed = seen_names.token(place.code, place.cursor)
        if typed is None:
            return found
        owner, begin = typed
        end = place.start + place.cursor
        return found + [
            Match(name, end - len(begin), end, kind)
            for name, kind in self._named(place, owner, mesh, answer is not None)
            if name.startswith(begin) and name not in there
        ]

    def _named(
        self, place: RankCode, owner: str, mesh: ProcMesh | None, is_told: bool
    ) -> list[Word]:
        # Of the cell, which has not run; and of cells before it and ranks, unless one has just told
        here = SeenNames()
        here.learn(seen_names.without_token(place.code, place.cursor))
        found = dict.fromkeys(here.of(owner), "")
        if is_told:
            return list(found.items())
        found |= dict.fromkeys(self._seen.of(owner), "")
        if mesh is not None and not owner:
            for (name, _), names in list(self._names.items()):
                found |= names if name == mesh.name else {}
        return list(found.items())

    def _variables(self, command: str) -> list[Word]:
        if command == "put":
            names = self._shell.user_ns
            hidden = self._shell.user_ns_hidden
            return [(name, "") for name in list(names) if name[0] != "_" and name not in hidden]
        if command == "get":
            found = {
                name: kind for names in list(self._names.values()) for name, kind in names.items()
            }
            return list(found.items())
        return []

    # --------------------------------------------------------------------------------- names

    def _of_name(self, place: RankCode, detail: int) -> str | None:
        mesh, ranks = self._mesh_and_ranks(place.line)
        key = getattr(mesh, "name", ""), detail, token_at_cursor(place.code, place.cursor)
        answer = self._ask(mesh, ranks, messages.Inspect(place.code, place.cursor, detail))
        if answer is not None:
            self._texts.pop(key, None)
            self._texts[key] = answer.text
            for old in list(self._texts)[:-MAX_TEXTS]:
                del self._texts[old]
        return self._texts.get(key)

    # --------------------------------------------------------------------------------- ranks

    def _mesh_and_ranks(self, line: str) -> tuple[ProcMesh | None, list[int]]:
        # The mesh of a `%%mesh` line and its living ranks; of a line that is wrong, the current
        # mesh
        meshes, lost = self._meshes, self._control.lost
        try:
            chosen = options.parse_cell(line)
            mesh = meshes.glance(chosen.name)
            parts = [] if mesh is None else selection.parts(mesh, chosen.selection)
        except MeshError:
            mesh = meshes.glance()
            parts = [] if mesh is None else [mesh]
        gone = set() if mesh is None else set(lost(mesh))
        return mesh, sorted({rank for part in parts for rank in part.ranks} - gone)

    def _ask(self, mesh: ProcMesh | None, ranks: Sequence[int], request: Request[A]) -> A | None:
        if mesh is None or not mesh.initialized.done():  # who comes up answers nothing, and late
            return None
        with self._asking:  # who is asked just now owes nothing yet
            free = [rank for rank in ranks if (mesh.name, rank) not in self._owing]
            if not free:
                return None
            where = mesh.name, free[0]
            self._owing.add(where)
            late = partial(self._answered, where)
            answer: A | Refused | None
            answer = self._control.help(mesh, free[0], request, ANSWER_S, late)
            if answer is not None:
                self._answered(where, answer)
        return None if isinstance(answer, Refused) else answer

    def _answered(self, where: Where, answer: object) -> None:
        # A rank owes nothing now; what it has told of its names is kept. Any thread.
        self._owing.discard(where)
        if isinstance(answer, messages.Completions):
            self._names[where] = answer.names


def _matches(found: Sequence[messages.Match], start: int) -> Iterator[Match]:
    for text, begin, end, kind in found:
        yield Match(text, start + begin, start + end, kind)


def install(shell: InteractiveShell, found: Help) -> Callable[[], None]:
    """Answer from now on. Returns what ends it."""
    undo = [_complete(shell.Completer, found)]
    if (kernel := kernel_of(shell)) is not None:
        undo.append(_inspect(kernel, found))

    def end() -> None:
        for each in undo:
            each()

    return end


def _complete(completer: IPCompleter, found: Help) -> Callable[[], None]:
    original = completer.completions
    alone = threading.Lock()  # IPython's completer keeps what it works on in itself

    def completions(text: str, offset: int) -> Iterator[Completion]:
        matches = found.complete(text, offset)
        if matches is None:
            with alone:
                theirs = list(original(text, offset))
            yield from theirs
            return
        for match in matches:
            with provisionalcompleter():
                made = Completion(match.start, match.end, match.text, type=match.kind)
            yield made

    vars(completer)["completions"] = completions
    return lambda: _uncover(completer, "completions")


def _inspect(kernel: Kernel, found: Help) -> Callable[[], None]:
    original = kernel.do_inspect

    def do_inspect(
        code: str, cursor_pos: int | None, detail_level: int = 0, *rest: object
    ) -> object:
        offset = len(code) if cursor_pos is None else cursor_pos
        answer = found.inspect(code, offset, detail_level)
        if answer is None:
            return original(code, cursor_pos, detail_level, *rest)
        text = answer["text"]
        data = {} if text is None else {"text/plain": text}
        return {"status": "ok", "found": text is not None, "data": data, "metadata": {}}

    kernel.do_inspect = do_inspect
    return lambda: _uncover(kernel, "do_inspect")


def _uncover(instance: object, method: str) -> None:
    vars(instance).pop(method, None)
