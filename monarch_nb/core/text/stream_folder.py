"""What several ranks print becomes one text: rank after rank, equal lines once, with their labels.

Rules of the file: the lines of one rank stay in order, whatever is folded. What a rank says waits
for what the others say at the same point of their program: until all ranks that still run have said
the same, until all have said something and pause, at most `window_s`. Then all of it is shown,
`alignment` says how. What has come a moment ago waits for the next time: its equals may be on their
way. So a rank that prints without a pause holds nobody up, and takes nobody along. Displays wait
longer, as figures of the same cell are drawn seconds apart, but no line waits for them.
Pure: time is given with every call, `deadline` says when the next `take` is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from monarch_nb.core.errors.folding import rank_label, rank_list
from monarch_nb.core.text.alignment import Piece, Run, aligned, is_meeting
from monarch_nb.core.text.lines import LAST_LINES, LineAssembler, Text, Throttle, pieces

WINDOW_S: Final = 0.15
QUIET_S: Final = 0.05  # longer than a rank that goes on printing lets its text gather
FRESH_S: Final = 0.03  # what is younger waits for the next time
SLACK_S: Final = 0.05  # what would be due so soon goes along when something is shown
DISPLAY_S: Final = 1.0  # so long a figure waits for those of ranks before it
PARTIAL_S: Final = 0.5  # then a line without an end is shown as it is
PROGRESS_S: Final = 0.2  # between two states of a progress line
MAX_WAITING: Final = 5_000  # lines of one rank
MAX_BLOCK: Final = 200  # lines; more that were written at once are lines like others
DISPLAY: Final = "display"  # the stream whose labels name all ranks, for programs

Span = tuple[int, int]  # of characters that were written at once, from and to


class _Chunk(NamedTuple):
    at: float
    last: int  # number of its last piece among those of the rank
    is_display: bool


@dataclass(slots=True, eq=False)
class _Rank:
    """Keeps what one rank has said until it is shown; pieces are numbered from 1."""

    waiting: deque[Piece] = field(default_factory=deque)
    chunks: deque[_Chunk] = field(default_factory=deque)
    pushed: int = 0
    shown: int = 0
    began_s: float = 0.0  # when it began to speak after a pause
    spoke_s: float = float("-inf")
    batch: int = 0  # in which it has last shown something

    def lines_until(self, limit_s: float) -> int:
        """The number of the last line that came by then, behind which displays may wait."""
        found = 0
        for chunk in self.chunks:
            if chunk.at > limit_s:
                break
            found = found if chunk.is_display else chunk.last
        return found

    def has_line(self, limit_s: float) -> bool:
        """Tell whether a line waits that came by then."""
        return self.lines_until(limit_s) > self.shown

    def all_until(self, limit_s: float) -> int:
        return max((chunk.last for chunk in self.chunks if chunk.at <= limit_s), default=0)

    @property
    def shows(self) -> bool:
        """Tell whether the last that it has said is a display."""
        return bool(self.chunks) and self.chunks[-1].is_display

    def take(self, last: int) -> list[Piece]:
        taken = [self.waiting.popleft() for _ in range(last - self.shown)]
        self.shown = max(self.shown, last)
        while self.chunks and self.chunks[0].last <= last:
            self.chunks.popleft()
        return taken


class StreamFolder:
    """The output of one cell on `ranks`, which are part of a mesh of `total` ranks.

    `take` returns the texts to show, in order. On a mesh of one rank text passes as it is.

    Example:
        >>> folder = StreamFolder([0, 1])
        >>> folder.feed(0, "stdout", "hello\\n", now=0.0)
        >>> folder.take(now=0.0)
        []
        >>> folder.feed(1, "stdout", "hello\\n", now=0.01)
        >>> folder.take(now=0.01)
        [Text(stream='stdout', text='[0-1] hello\\n')]
    """

    def __init__(
        self,
        ranks: Iterable[int],
        total: int | None = None,
        *,
        window_s: float = WINDOW_S,
        throttle: Throttle | None = None,
    ) -> None:
        self._running = set(ranks)
        self.total = len(self._running) if total is None else total
        self._window_s = window_s
        self._throttle = throttle or Throttle()
        self._assemblers: dict[tuple[int, str], LineAssembler] = {}
        self._partials: dict[tuple[int, str], float] = {}  # unfinished lines, and since when
        self._torn: set[tuple[int, str]] = set()  # lines that were shown before they ended
        self._ranks: dict[int, _Rank] = {}
        self._equals: dict[Piece, dict[int, deque[int]]] = {}  # of each rank, the numbers
        self._lines: deque[tuple[float, int, int]] = deque()  # chunks: when, rank, number
        self._displays: deque[tuple[float, int, int]] = deque()
        self._silent = set(self._running)  # that run and have nothing waiting
        self._paused_s: float | None = None  # since when, if they are not all silent
        self._ready: list[Text] = []
        self.batch = 0
        """How often something was shown."""
        self._drawn = Text("", "")  # the progress line on the screen
        self._drawn_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Tell whether `take` has something to show, whatever time it is."""
        return bool(self._ready)

    @property
    def deadline(self) -> float | None:
        """When `take` has more to show, or None while nothing waits."""
        times = [
            max(since, self._drawn_at) + PROGRESS_S
            if self._assemblers[place].is_progress
            else since + PARTIAL_S
            for place, since in self._partials.items()
        ]
        if self._lines:
            times.append(self._lines[0][0] + self._window_s)
        if self._displays:
            times.append(self._displays[0][0] + DISPLAY_S)
        if self._paused_s is not None and not self._silent:
            times.append(self._paused_s + QUIET_S)
        return min(times, default=None)

    def feed(
        self, rank: int, stream: str, text: str, now: float, blocks: Sequence[Span] = ()
    ) -> None:
        """Take a chunk of output; `blocks` are parts of it that were written at once."""
        if len(text) > MAX_WAITING and self._throttle.hides_all(now):
            text, blocks = self._end_of_flood(rank, stream, text, blocks, now)
        if self.total == 1:
            shown = (self._throttle.show(stream, piece, now) for piece in pieces(text))
            self._ready += (one for texts in shown for one in texts)
            return
        place = rank, stream
        assembler = self._assemblers.setdefault(place, LineAssembler())
        lines = list(_assembled(assembler, text, blocks)) if blocks else assembler.feed(text)
        if lines and place in self._torn:
            self._torn.discard(place)
            lines = lines[not lines[0] :]  # its newline was shown when the line was torn
        if not assembler:
            self._partials.pop(place, None)
        elif lines or place not in self._partials:
            self._partials[place] = now
        self._say(rank, stream, lines, now)

    def finish(self, rank: int, now: float) -> None:
        """End the cell of a rank: nobody needs to wait for its lines any more."""
        self._end_partials(rank, now)
        self._running.discard(rank)
        self._silent.discard(rank)
        self._settle(list(self._equals), now)

    def join(self, rank: int, batch: int) -> bool:
        """Let a rank speak in that batch; False where something it said waits or is as new."""
        one = self._ranks.setdefault(rank, _Rank())
        if one.waiting or any(place[0] == rank for place in self._partials) or one.batch >= batch:
            return False
        one.batch = batch
        return True

    def take(self, now: float) -> list[Text]:
        """Return what is to be shown now."""
        for (rank, stream), since in list(self._partials.items()):
            if since + PARTIAL_S <= now and not self._assemblers[rank, stream].is_progress:
                self._torn.add((rank, stream))
                self._end_partial(rank, stream, now)
        if last := self._due(now):
            self._show(last, now)
        return self._taken() + self._progress(now)

    def release(self, now: float) -> list[Text]:
        """Return every line that waits for its equals: something else is about to be shown."""
        self._show(self._everything(), now)
        return self._taken()

    def flush(self, now: float) -> list[Text]:
        """End the cell: return everything that waits, and how much was hidden."""
        for rank in {rank for rank, _ in self._partials}:
            self._end_partials(rank, now)
        return _merged([*self.release(now), *self._throttle.close()])

    # --------------------------------------------------------------------------- what is said

    def _end_of_flood(
        self, rank: int, stream: str, text: str, blocks: Sequence[Span], now: float
    ) -> tuple[str, Sequence[Span]]:
        # Of more lines than may wait, all of which are to be hidden, only the last are looked at
        count = text.count("\n") - LAST_LINES
        if count <= MAX_WAITING:
            return text, blocks
        self._show(self._everything(), now)
        self._throttle.hide(count)
        end = len(text)
        for _ in range(LAST_LINES + 1):
            end = text.rindex("\n", 0, end)
        place = rank, stream
        self._torn.discard(place)
        self._partials.pop(place, None)
        self._assemblers[place] = LineAssembler()
        return text[end + 1 :], ()

    def _say(self, rank: int, stream: str, lines: Sequence[str], now: float) -> None:
        if not lines:
            return
        said = [(stream, line) for line in lines]
        one = self._ranks.setdefault(rank, _Rank())
        if not self._equals and self._running <= {rank}:  # alone; there may be a million lines
            one.batch = self.batch + 1
            self._ready += self._labelled([Run((rank,), said)], now)
            return
        if not one.waiting and now - one.spoke_s > self._window_s:
            one.began_s = now
        for number, piece in enumerate(said, one.pushed + 1):
            self._equals.setdefault(piece, {}).setdefault(rank, deque()).append(number)
        one.waiting += said
        one.pushed += len(said)
        one.spoke_s = self._paused_s = now
        one.chunks.append(_Chunk(now, one.pushed, stream == DISPLAY))
        order = self._displays if stream == DISPLAY else self._lines
        order.append((now, rank, one.pushed))
        self._silent.discard(rank)
        self._settle(said, now)
        if len(one.waiting) > MAX_WAITING:
            self._show(self._everything(), now)

    def _settle(self, said: Iterable[Piece], now: float) -> None:
        # Show what comes before a line that all ranks have said which run, and the line
        last: dict[int, int] = {}
        for piece in dict.fromkeys(said):
            if is_meeting(piece) and self._is_said_by_all(piece):
                for rank, numbers in self._equals[piece].items():
                    last[rank] = max(last.get(rank, 0), numbers[0])
        if last:
            ended = {
                rank: one.pushed for rank, one in self._ranks.items() if rank not in self._running
            }
            more = {rank: self._with_more(rank, number) for rank, number in last.items()}
            self._show({**ended, **more}, now)
        elif not self._running:
            self._show(self._everything(), now)

    def _is_said_by_all(self, piece: Piece) -> bool:
        said_by = self._equals.get(piece, {})
        return bool(said_by) and self._running <= said_by.keys()

    def _with_more(self, rank: int, number: int) -> int:
        # With what follows and belongs to it, if all have that, too
        one = self._ranks[rank]
        while number < one.pushed:
            piece = one.waiting[number - one.shown]
            if is_meeting(piece) or not self._is_said_by_all(piece):
                break
            number += 1
        return number

    # --------------------------------------------------------------------------- what is shown

    def _due(self, now: float) -> dict[int, int]:
        # The number of the last piece of each rank that is to be shown
        if self._displays and self._displays[0][0] + DISPLAY_S <= now:
            late = {rank: one.all_until(now - FRESH_S) for rank, one in self._ranks.items()}
        elif self._paused_s is not None and not self._silent and self._paused_s + QUIET_S <= now:
            self._paused_s = None  # looked at: what still waits does not for this
            late = self._rested(now)
        elif self._lines and self._lines[0][0] + self._window_s <= now + self._slack_s:
            late = self._late(now)
        else:
            return {}
        return self._with_equals(late)

    def _rested(self, now: float) -> dict[int, int]:
        if all(self._ranks[rank].shows for rank in self._running):
            return self._everything()
        return {rank: one.lines_until(now) for rank, one in self._ranks.items()}

    def _late(self, now: float) -> dict[int, int]:
        # Who has just begun to speak takes the others along, in the order of ranks; who goes on
        # and on does not: then their lines could never wait for each other
        limit_s = max(now - self._window_s + self._slack_s, self._lines[0][0])  # rounded
        taken = {rank: one for rank, one in self._ranks.items() if one.has_line(limit_s)}
        if any(self._begins(one, now) for one in taken.values()):
            taken = self._ranks
            if not self._silent:  # all have said something: nobody else is on the way
                return {rank: one.lines_until(now) for rank, one in taken.items()}
        else:  # and who goes on, too, and would be due in a moment
            others = {rank: one for rank, one in self._ranks.items() if not self._begins(one, now)}
            taken |= {rank: one for rank, one in others.items() if one.has_line(limit_s + SLACK_S)}
        return {rank: one.lines_until(now - FRESH_S) for rank, one in taken.items()}

    def _begins(self, one: _Rank, now: float) -> bool:
        return now - one.began_s < 1.5 * self._window_s

    @property
    def _slack_s(self) -> float:
        return SLACK_S if self._ready else 0.0

    def _with_equals(self, last: Mapping[int, int]) -> dict[int, int]:
        # What is equal to something that is shown is shown with it, with all before it
        found = {rank: number for rank, number in last.items() if number}
        for rank, number in list(found.items()):
            one = self._ranks[rank]
            for place in range(number - one.shown):
                for other, numbers in self._equals[one.waiting[place]].items():
                    if other != rank and is_meeting(one.waiting[place]):
                        found[other] = max(found.get(other, 0), numbers[0])
        return found

    def _everything(self) -> dict[int, int]:
        return {rank: one.pushed for rank, one in self._ranks.items()}

    def _show(self, last: Mapping[int, int], now: float) -> None:
        said = {rank: self._ranks[rank].take(number) for rank, number in last.items()}
        for rank, taken in said.items():
            for piece in taken:
                self._forget(rank, piece)
            if taken:
                self._ranks[rank].batch = self.batch + 1
            if rank in self._running and not self._ranks[rank].waiting:
                self._silent.add(rank)
        self._ready += self._labelled(aligned(said), now)
        self._forget_shown(self._lines)
        self._forget_shown(self._displays)

    def _forget(self, rank: int, piece: Piece) -> None:
        said_by = self._equals[piece]
        said_by[rank].popleft()
        if not said_by[rank]:
            del said_by[rank]
        if not said_by:
            del self._equals[piece]

    def _forget_shown(self, order: deque[tuple[float, int, int]]) -> None:
        while order and self._ranks[order[0][1]].shown >= order[0][2]:
            order.popleft()

    def _labelled(self, runs: Iterable[Run], now: float) -> Iterator[Text]:
        for ranks, said in runs:
            short, whole = rank_label(ranks, self.total), f"[{rank_list(ranks)}]"
            for stream, text in said:
                label = whole if stream == DISPLAY else short
                for line in text.split("\n"):
                    shown = f"{label} {line}\n" if line else f"{label}\n"
                    yield from self._throttle.show(stream, shown, now)

    def _taken(self) -> list[Text]:
        if not self._ready:
            return []
        ready, self._ready = self._ready, []
        self.batch += 1
        return _merged([*self._drawn_over(Text("", "")), *ready])

    # ------------------------------------------------------------------ lines without an end

    def _end_partials(self, rank: int, now: float) -> None:
        for stream in [stream for one, stream in self._partials if one == rank]:
            self._end_partial(rank, stream, now)

    def _end_partial(self, rank: int, stream: str, now: float) -> None:
        del self._partials[rank, stream]
        assembler = self._assemblers[rank, stream]
        was_progress, line = assembler.is_progress, assembler.take()
        if line.strip() or not was_progress:  # a bar that wiped itself leaves blanks
            self._say(rank, stream, [line], now)

    def _progress(self, now: float) -> list[Text]:
        # The state of the first rank's progress line, drawn over the one before
        moving = sorted(place for place in self._partials if self._assemblers[place].is_progress)
        if not moving or now < self._drawn_at + PROGRESS_S:
            return []
        stream = moving[0][1]
        state = self._assemblers[moving[0]].pending
        equal = [rank for rank, _ in moving if self._pending(rank, stream) == state]
        self._drawn_at = now
        return self._drawn_over(Text(stream, f"{rank_label(equal, self.total)} {state}"))

    def _pending(self, rank: int, stream: str) -> str | None:
        assembler = self._assemblers.get((rank, stream))
        return assembler.pending if assembler else None

    def _drawn_over(self, new: Text) -> list[Text]:
        # Replace the progress line; an empty `new` wipes it
        old, self._drawn = self._drawn, new
        if old == new:
            return []
        if old.stream == new.stream:
            return [Text(new.stream, f"\r{new.text:{len(old.text)}}")]
        wipe = [Text(old.stream, f"\r{' ' * len(old.text)}\r")] if old.text else []
        return [*wipe, new] if new.text else wipe


class Written(NamedTuple):
    """A line of a rank, and when it came; None: nobody knows."""

    rank: int
    text: str
    at: float | None


def folded(written: Iterable[Written], total: int, throttle: Throttle) -> str:
    """Return what ranks of a mesh of `total` have written before, those of each rank in order, as
    one text: the one that was shown while it came.

    Example:
        >>> lines = [Written(0, "done", 2.5), Written(1, "begins", 1.0), Written(1, "done", 2.5)]
        >>> print(folded(lines, 2, Throttle()), end="")
        [1] begins
        [0-1] done
    """
    moments = list(_moments(written))
    folder = StreamFolder({each.rank for _, each in moments}, total, throttle=throttle)
    shown: list[Text] = []
    now = 0.0
    for now, (rank, text, _) in sorted(moments, key=lambda each: each[0]):
        while (due := folder.deadline) is not None and due <= now:
            shown += folder.take(due)
        folder.feed(rank, "stdout", f"{text}\n", now)
    return "".join(text.text for text in [*shown, *folder.flush(now)])


def _moments(written: Iterable[Written]) -> Iterator[tuple[float, Written]]:
    # a clock may have been set back, but the lines of a rank stay in order
    last: dict[int, float] = {}
    for line in written:
        last[line.rank] = max(last.get(line.rank, 0.0), line.at or 0.0)
        yield last[line.rank], line


def _assembled(assembler: LineAssembler, text: str, blocks: Sequence[Span]) -> Iterator[str]:
    # Lines; those of a block as one, to the end of its last line
    done = 0
    for start, last in blocks:
        end = last + text.startswith("\n", last)
        yield from assembler.feed(text[done:start])
        block = assembler.feed(text[start:end])
        if len(block) > MAX_BLOCK:
            yield from block
        elif block:
            yield "\n".join(block)
        done = end
    yield from assembler.feed(text[done:])


def _merged(texts: list[Text]) -> list[Text]:
    return [
        Text(stream, "".join(one.text for one in group))
        for stream, group in groupby(texts, key=lambda one: one.stream)
    ]
