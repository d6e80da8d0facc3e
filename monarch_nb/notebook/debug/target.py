"""Whom the visual debugger debugs: the controller, some ranks, or nobody.

Rules of the file: what is chosen here is what a front end's next *attach* means; the kernel that
serves the front end follows (`follow`) and moves a debugger that is attached at once. The magics
call `choose` in the main thread, buttons in a thread of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from IPython.core.inputtransformer2 import leading_empty_lines
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.core.text.units import are
from monarch_nb.notebook.errors import MagicError

if TYPE_CHECKING:
    from monarch_nb.control.api import Client, Control, ProcMesh
    from monarch_nb.control.debug.dap import DapLink
    from monarch_nb.notebook.client_link import ClientLink

MAX_RANKS: Final = 128
"""Ranks that are debugged at once; a panel of threads is for a person to read."""

NO_DEBUGGER: Final = "this kernel has no visual debugger for ranks; choose the Monarch kernel"

_OF_FIRST_LINE: Final = ("%%", " ", "\t", ">>>", "In [")
"""What IPython looks for at the start of a cell."""


@dataclass(frozen=True)
class Choice:
    """Ranks of a mesh; of no mesh: the controller, or with `is_off` nobody."""

    mesh: str = ""
    ranks: tuple[int, ...] = ()
    is_off: bool = False

    @property
    def whom(self) -> str:
        """ "ranks", "controller" or "off"."""
        return "ranks" if self.mesh else "off" if self.is_off else "controller"

    def __str__(self) -> str:
        if self.is_off:
            return "nobody"
        return f"{rank_words(self.ranks)} of {self.mesh}" if self.mesh else "the controller"


CONTROLLER: Final = Choice()
NOBODY: Final = Choice(is_off=True)


class Follower(Protocol):
    """The debugger of a kernel, which goes where the choice is. Any thread but that of its loop."""

    def move_to(self, target: Choice) -> str:
        """Attach to that instead, if anything is attached; what to tell the user of it."""

    def doing(self) -> str:
        """Return what it does, for people."""

    def rejoin(self, ranks: Sequence[int]) -> None:
        """Debug these too, which have been lost and are there again."""

    def look_at(self, rank: int) -> bool:
        """Show this one of the stopped ranks; False if it has not stopped it."""


class Debugging:
    """The choice of one session, and the way to the debuggers in its ranks."""

    def __init__(self, control: Control, link: ClientLink) -> None:
        self._chosen = CONTROLLER
        self._control = control
        self._link = link
        self._follower: Follower | None = None
        link.on_attach(self._listen)

    @property
    def chosen(self) -> Choice:
        """What the next *attach* of a front end means."""
        return self._chosen

    def follow(self, follower: Follower) -> None:
        self._follower = follower

    def _listen(self, client: Client) -> None:
        client.on_heal(self._healed)

    def _healed(self, mesh: str, ranks: Sequence[int]) -> None:
        back = [rank for rank in ranks if rank in self.chosen.ranks]
        if self._follower is not None and mesh == self.chosen.mesh and back:
            self._follower.rejoin(back)

    def look_at(self, mesh: str, rank: int) -> bool:
        """Let the front end's debugger show this rank, if it has stopped it."""
        is_chosen = mesh == self.chosen.mesh and rank in self.chosen.ranks
        return self._follower is not None and is_chosen and self._follower.look_at(rank)

    @property
    def is_there(self) -> bool:
        return self._follower is not None

    def choose(self, choice: Choice) -> str:
        """Debug this from now on, let go of what was stopped elsewhere; return the line that says
        so.
        """
        if self._follower is None:
            raise MagicError(NO_DEBUGGER)
        self._chosen = choice
        done = self._follower.move_to(choice)
        return f"the visual debugger is for {choice}{done}"

    def ranks(self, mesh: ProcMesh, ranks: Sequence[int] | None) -> Choice:
        """Choose ranks of a mesh, None for all. Raises `MagicError` where that is no use."""
        wanted = tuple(mesh.ranks) if ranks is None else tuple(ranks)
        check_ranks(mesh, wanted)
        if len(wanted) > MAX_RANKS:
            raise MagicError(
                f"the visual debugger takes {MAX_RANKS} ranks at most, not {len(wanted)}. "
                f"Type: %mesh debugger {wanted[0]}"
            )
        if lost := sorted(set(wanted) & set(self._control.lost(mesh))):
            raise MagicError(f"{rank_words(lost)} of {mesh.name} cannot be debugged, it is lost. "
                             "Type: %mesh heal")  # fmt: skip
        return Choice(mesh.name, wanted)

    def __str__(self) -> str:
        doing = "" if self._follower is None else self._follower.doing()
        return f"the visual debugger is for {self.chosen}{doing}"

    def open(
        self,
        choice: Choice,
        rank: int,
        on_event: Callable[[dict[str, Any]], None],
        on_end: Callable[[str], None],
    ) -> DapLink:
        """Open the debugger in a rank of a choice; the callbacks come from the inbox thread.

        Raises `RuntimeError` where there is no such rank any more.
        """
        client, mesh = self._link.attach(), self._control.find(choice.mesh)
        if client is None or mesh is None or rank not in mesh.ranks:
            raise RuntimeError(f"{choice.mesh} has no rank {rank} any more")
        [process] = self._control.processes(mesh, [rank])
        return client.debuggers.open(process, on_event, on_end)


def stopped_words(ranks: Iterable[int]) -> str:
    which = sorted(ranks)
    return f"{rank_words(which)} {are(which)} stopped"


def keep_empty_lines(shell: InteractiveShell) -> None:
    """Keep the lines of cells as in the notebook, where a debugger sets breakpoints.

    IPython drops empty ones at the start; ipykernel keeps them while it debugs, but then a cell
    magic below one is none.
    """
    transforms = shell.input_transformer_manager.cleanup_transforms
    if leading_empty_lines in transforms:
        transforms[transforms.index(leading_empty_lines)] = _with_empty_lines


def _with_empty_lines(lines: list[str]) -> list[str]:
    kept: list[str] = leading_empty_lines(lines)
    return kept if kept and kept[0].startswith(_OF_FIRST_LINE) else lines
