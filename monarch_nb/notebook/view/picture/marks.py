"""How the state of a rank looks: a sign in text, a shape and a colour in pictures.

Rule of the file: nobody needs colours to read a mesh. The front end has the same shapes and colours
(`front/data/words.js`, `front/mesh.css`). The palette is Okabe and Ito's, for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

GREEN: Final = "#009E73"
BLUE: Final = "#2F8FD6"
GREY: Final = "#7a7a7a"
PINK: Final = "#CC79A7"
ORANGE: Final = "#E69F00"
RED: Final = "#D55E00"


class Mark(NamedTuple):
    """`sign` stands in text; `shape` is drawn; `colour` is for both."""

    sign: str
    shape: str
    colour: str


MARKS: Final[dict[str, Mark]] = {
    "busy": Mark("●", "full", BLUE),
    "collective": Mark("◆", "diamond", BLUE),
    "idle": Mark("○", "dot", GREEN),
    "starting": Mark("◌", "dashed", GREY),
    "paused": Mark("‖", "bars", PINK),
    "silent": Mark("▲", "triangle", ORANGE),
    "leaving": Mark("◌", "hollow", GREY),
    "stopped": Mark("◌", "hollow", GREY),
    "failed": Mark("!", "bang", RED),
    "exited": Mark("✕", "cross", RED),
    "unreachable": Mark("✕", "cross", RED),
}
"""By state, in the order of summaries."""

BAD: Final = MARKS["exited"]
_ORDER: Final = {state: place for place, state in enumerate(MARKS)}


def mark_of(state: str) -> Mark:
    """Return the mark of a state; of one that is not known here, that of what is bad."""
    return MARKS.get(state, BAD)


def is_alarming(state: str) -> bool:
    """Tell whether it is told before all others."""
    return mark_of(state).shape in ("bang", "cross", "triangle")


def in_order(states: Iterable[str]) -> list[str]:
    """Return each state once, as summaries have them; what is not known here comes last."""
    return sorted(dict.fromkeys(states), key=lambda one: _ORDER.get(one, len(_ORDER)))
