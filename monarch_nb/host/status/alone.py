"""What ranks of this host do while nobody drives them: a note that the agent leaves in its run dir,
for who asks before the ranks are attached."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import Row
from monarch_nb.core.wire.messages.keeping import Alone, Doing
from monarch_nb.errors import ProtocolError

PERIOD_S: Final = 1.0
"""So often it is written anew."""
ENDED: Final = "ended"
SILENT: Final = "silent"
_NOTE: Final = "alone.json"


def doing(rows: Iterable[Row], silent: Collection[int], ended: int, now_ns: int) -> list[Doing]:
    """Count the ranks of these rows of the board by what they do; some cannot be heard, and so many
    have ended. `now_ns` is monotonic, as the rows are."""
    found: dict[tuple[str, str], Doing] = {}
    for process, told, since_ns, what, *_ in rows:
        state = SILENT if process in silent else told
        before = found.get((state, what), Doing(0, state, what, 0.0))
        for_s = max(before.for_s, (now_ns - since_ns) / 1e9 if since_ns else 0.0)
        found[state, what] = Doing(before.ranks + 1, state, what, for_s)
    return [*found.values(), *([Doing(ended, ENDED, "", 0.0)] if ended else [])]


def write(run_dir: Path, alone: Alone) -> None:
    """Leave the note, in the place of an older one. Raises `OSError`."""
    draft = (run_dir / _NOTE).with_suffix(".draft")
    draft.write_bytes(codec.encode_output(alone))  # the folder is private
    draft.replace(run_dir / _NOTE)


def read(run_dir: Path) -> Alone | None:
    """Return the note, with its age; None where there is none."""
    note = run_dir / _NOTE
    try:
        found = codec.decode(Alone, codec.json_of(note.read_bytes()))
        return found._replace(age_s=max(0.0, time.time() - note.stat().st_mtime))
    except (OSError, ProtocolError):
        return None
