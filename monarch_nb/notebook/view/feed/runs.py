"""The runs of a mesh as the feed tells them: their names, and the curves of the earlier ones.

Rule of the file: an earlier run is told whole, with fewer points; it hardly changes any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.core.runs import title
from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, Json, number, plain

if TYPE_CHECKING:
    from monarch_nb.core.curves import Curve
    from monarch_nb.core.runs import Run

MAX_EARLIER_POINTS: Final = 128
_KEPT_GONE: Final = 64  # runs that are remembered as gone

_Versions = tuple[tuple[str, int], ...]


class RunsColumn:
    """The runs that are kept. `floor`: what has gone since an update before this is not known."""

    def __init__(self) -> None:
        self.floor = 0
        self._versions: dict[int, _Versions] = {}
        self._told: dict[int, Json] = {}
        self._n: dict[int, int] = {}
        self._begun: dict[int, int] = {}  # run: at which update it came
        self._gone: dict[int, tuple[int, int]] = {}  # run: when it came, and when it gave way

    def update(self, runs: Sequence[Run], curves: Mapping[str, Curve], n: int) -> bool:
        """Take them as they are now. Whether anything is to be told.

        `curves`: those that are told by themselves, as they grow.
        """
        changed = False
        for run in runs:
            earlier = {
                name: curve
                for name, curve in list(run.curves.items())
                if curves.get(name) is not curve
            }
            of_now = tuple(name for name in run.curves if name not in earlier)
            versions = (
                *((name, curve.version) for name, curve in earlier.items()),
                *((name, -1) for name in of_now),
            )
            if versions == self._versions.get(run.number):
                continue
            self._versions[run.number] = versions
            self._told[run.number] = _told(run, earlier, of_now)
            self._n[run.number], changed = n, True
            self._begun.setdefault(run.number, n)
        for gone in self._told.keys() - {run.number for run in runs}:
            del self._told[gone], self._versions[gone], self._n[gone]
            self._gone[gone], changed = (self._begun.pop(gone), n), True
        while len(self._gone) > _KEPT_GONE:
            _, self.floor = self._gone.pop(next(iter(self._gone)))
        return changed

    def since(self, base: int) -> Json:
        """Return those that changed, by number; null for one that is not kept any more."""
        found: Json = {str(run): self._told[run] for run, n in self._n.items() if n > base}
        if base:
            # only those that the page has: of a loop of runs hundreds may have come and gone since
            found |= {str(run): None for run, (came, n) in self._gone.items() if came <= base < n}
        return found


def _told(run: Run, earlier: Mapping[str, Curve], of_now: Sequence[str]) -> Json:
    return {
        "name": plain(title(run), MAX_WHAT),
        "current": [plain(name, MAX_WHAT) for name in of_now],
        "curves": {plain(name, MAX_WHAT): _points(curve) for name, curve in earlier.items()},
    }


def _points(curve: Curve) -> list[list[float | None]]:
    points = curve.points
    stride = -(-len(points) // MAX_EARLIER_POINTS) or 1
    return [[number(value) for value in point] for point in points[::-1][::stride][::-1]]
