"""What several ranks print becomes one text: equal lines once, labelled with their ranks.

Rule: the lines of one rank stay in order, whatever is folded. A line waits for its equals until all
ranks that still run have printed it, at most `window_s`; then it is shown with those that came.
Pure: time is given with every call, `deadline` says when the next `tick` is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from monarch_nb.core.errors.folding import rank_label, rank_list
from monarch_nb.core.text.lines import LineAssembler, Text, Throttle, pieces

WINDOW_S: Final = 0.06
PARTIAL_S: Final = 0.5  # then a line without an end is shown as it is
PROGRESS_S: Final = 0.2  # between two states of a progress line
MAX_WAITING: Final = 5_000  # lines of one rank
MAX_NESTING: Final = 64  # ranks that wait for one another
DISPLAY: Final = "display"  # the stream whose labels name all ranks, for programs

Key = tuple[str, str]  # stream, line


@dataclass(slots=True, eq=False)
class _WaitingLine:
    ranks: dict[int, int] = field(default_factory=dict)  # that have it waiting, and how often
    running: int = 0  # how many of them still run


class StreamFolder:
    """The output of one cell on `ranks`, which are part of a mesh of `total` ranks.

    Each method returns the texts to show now, in order. On a mesh of one rank text passes as it is.

    Example:
        >>> folder = StreamFolder([0, 1])
        >>> folder.feed(0, "stdout", "hello\\n", now=0.0)
        []
        >>> folder.feed(1, "stdout", "hello\\n", now=0.01)
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
        self._queues: dict[int, deque[Key]] = {}
        self._equals: dict[Key, _WaitingLine] = {}
        self._order: deque[tuple[float, int, int]] = deque()  # when, rank, how manyth of the rank
        self._pushed: dict[int, int] = {}
        self._released: dict[int, int] = {}
        self._ready: list[tuple[Key, list[int]]] = []
        self._batches: dict[int, int] = {}  # in which the rank has last shown something
        self.batch = 0
        """How often something was shown."""
        self._drawn = Text("", "")  # the progress line on the screen
        self._drawn_at = 0.0

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do, or None while nothing waits."""
        times = [
            max(since, self._drawn_at) + PROGRESS_S
            if self._assemblers[place].is_progress
            else since + PARTIAL_S
            for place, since in self._partials.items()
        ]
        self._forget_released()
        if self._order:
            times.append(self._order[0][0] + self._window_s)
        return min(times, default=None)

    def feed(self, rank: int, stream: str, text: str, now: float) -> list[Text]:
        """Take a chunk of output."""
        if self.total == 1:
            return self._passed(stream, text, now)
        place = rank, stream
        assembler = self._assemblers.setdefault(place, LineAssembler())
        lines = assembler.feed(text)
        if lines and place in self._torn:
            self._torn.discard(place)
            lines = lines[not lines[0] :]  # its newline was shown when the line was torn
        is_alone = self._running <= {rank} and not self._equals
        shown = self._shown_alone(rank, stream, lines, now) if is_alone else []
        for line in () if is_alone else lines:
            self._push(rank, stream, line, now)
        if not assembler:
            self._partials.pop(place, None)
        elif lines or place not in self._partials:
            self._partials[place] = now
        self._release_older(now - self._window_s)
        return shown or self._shown(now)

    def finish(self, rank: int, now: float) -> list[Text]:
        """End the cell of a rank: nobody needs to wait for its lines any more."""
        self._end_partials(rank, now)
        if rank in self._running:
            self._running.discard(rank)
            for key in set(self._queues.get(rank, ())):
                self._equals[key].running -= 1
        for key in list(self._equals):
            self._settle(key)
        return self._shown(now)

    def join(self, rank: int, batch: int) -> bool:
        """Let a rank speak in that batch; False where something it said waits or is as new."""
        waits = self._queues.get(rank) or any(one == rank for one, _ in self._partials)
        if waits or self._batches.get(rank, 0) >= batch:
            return False
        self._batches[rank] = batch
        return True

    def tick(self, now: float) -> list[Text]:
        for (rank, stream), since in list(self._partials.items()):
            if since + PARTIAL_S <= now and not self._assemblers[rank, stream].is_progress:
                self._torn.add((rank, stream))
                self._end_partial(rank, stream, now)
        self._release_older(now - self._window_s)
        return self._shown(now) + self._progress(now)

    def release(self, now: float) -> list[Text]:
        """Show every line that waits for its equals: something else is about to be shown."""
        self._release_older(now)
        return self._shown(now)

    def flush(self, now: float) -> list[Text]:
        """End the cell: show everything that waits, and how much was hidden."""
        for rank in {rank for rank, _ in self._partials}:
            self._end_partials(rank, now)
        self._release_older(now)
        return _merged([*self._shown(now), *self._throttle.close()])

    def _push(self, rank: int, stream: str, line: str, now: float) -> None:
        key = stream, line
        queue = self._queues.setdefault(rank, deque())
        equals = self._equals.setdefault(key, _WaitingLine())
        if rank not in equals.ranks:
            equals.running += rank in self._running
        equals.ranks[rank] = equals.ranks.get(rank, 0) + 1
        queue.append(key)
        number = self._pushed[rank] = self._pushed.get(rank, 0) + 1
        self._order.append((now, rank, number))
        self._settle(key)
        if len(queue) > MAX_WAITING:
            self._release(rank, set())

    def _settle(self, key: Key) -> None:
        # if no rank that runs can still add to it
        equals = self._equals.get(key)
        if equals and equals.running == len(self._running):
            rank = next(iter(equals.ranks))
            self._advance(rank, key, set())
            if self._first(rank) == key:
                self._release(rank, set())

    def _release_older(self, limit: float) -> None:
        while self._order and self._order[0][0] <= limit:
            _, rank, number = self._order.popleft()
            if self._released.get(rank, 0) < number:
                self._release(rank, set())

    def _forget_released(self) -> None:
        while self._order and self._released.get(self._order[0][1], 0) >= self._order[0][2]:
            self._order.popleft()

    def _release(self, rank: int, waiting: set[int]) -> None:
        # Show the rank's first line with its equals, after what other ranks printed before those.
        # `waiting` are the ranks whose own first line is being released further up.
        key, released = self._queues[rank][0], self._released.get(rank, 0)
        waiting.add(rank)
        for other in list(self._equals[key].ranks):
            if other not in waiting and len(waiting) < MAX_NESTING:
                self._advance(other, key, waiting)
        waiting.discard(rank)
        if self._released.get(rank, 0) == released:  # else it went along with another's
            ranks = [one for one in self._equals[key].ranks if self._first(one) == key]
            for one in ranks:
                self._pop(one)
            self._ready.append((key, ranks))

    def _advance(self, rank: int, key: Key, waiting: set[int]) -> None:
        while self._holds(rank, key) and self._first(rank) != key:
            self._release(rank, waiting)

    def _pop(self, rank: int) -> None:
        key = self._queues[rank].popleft()
        self._released[rank] = self._released.get(rank, 0) + 1
        equals = self._equals[key]
        equals.ranks[rank] -= 1
        if not equals.ranks[rank]:
            del equals.ranks[rank]
            equals.running -= rank in self._running
        if not equals.ranks:
            del self._equals[key]

    def _first(self, rank: int) -> Key | None:
        queue = self._queues[rank]
        return queue[0] if queue else None

    def _holds(self, rank: int, key: Key) -> bool:
        equals = self._equals.get(key)
        return equals is not None and rank in equals.ranks

    def _end_partials(self, rank: int, now: float) -> None:
        for stream in [stream for one, stream in self._partials if one == rank]:
            self._end_partial(rank, stream, now)

    def _end_partial(self, rank: int, stream: str, now: float) -> None:
        del self._partials[rank, stream]
        assembler = self._assemblers[rank, stream]
        was_progress, line = assembler.is_progress, assembler.take()
        if line.strip() or not was_progress:  # a bar that wiped itself leaves blanks
            self._push(rank, stream, line, now)

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

    def _passed(self, stream: str, text: str, now: float) -> list[Text]:
        shown = (self._throttle.show(stream, piece, now) for piece in pieces(text))
        return _merged([one for texts in shown for one in texts])

    def _shown_alone(self, rank: int, stream: str, lines: list[str], now: float) -> list[Text]:
        # there may be a million lines
        if not lines:
            return []
        label = rank_label([rank], self.total)
        self.batch += 1
        self._batches[rank] = self.batch
        texts = self._drawn_over(Text("", ""))
        for line in lines:
            texts += self._throttle.show(stream, f"{label} {line}\n" if line else f"{label}\n", now)
        return _merged(texts)

    def _shown(self, now: float) -> list[Text]:
        self._forget_released()
        if not self._ready:
            return []
        ready, self._ready = _by_rank(self._ready), []
        self.batch += 1
        texts = self._drawn_over(Text("", ""))
        for (stream, line), ranks in ready:
            self._batches.update(dict.fromkeys(ranks, self.batch))
            label = f"[{rank_list(ranks)}]" if stream == DISPLAY else rank_label(ranks, self.total)
            text = f"{label} {line}\n" if line else f"{label}\n"
            texts += self._throttle.show(stream, text, now)
        return _merged(texts)


def _by_rank(lines: list[tuple[Key, list[int]]]) -> list[tuple[Key, list[int]]]:
    # What is shown at once in the order of ranks, as far as the lines of each rank allow
    ordered: list[tuple[Key, list[int]]] = []
    once: list[tuple[Key, list[int]]] = []  # of ranks of which none has spoken twice
    seen: set[int] = set()
    for one in lines:
        if not seen.isdisjoint(one[1]):
            ordered += sorted(once, key=_first_rank)
            once, seen = [], set()
        once.append(one)
        seen.update(one[1])
    return ordered + sorted(once, key=_first_rank)


def _first_rank(line: tuple[Key, list[int]]) -> int:
    return min(line[1])


def _merged(texts: list[Text]) -> list[Text]:
    return [
        Text(stream, "".join(one.text for one in group))
        for stream, group in groupby(texts, key=lambda one: one.stream)
    ]
