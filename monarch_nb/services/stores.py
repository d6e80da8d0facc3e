"""The store in which the ranks of a mesh meet for process groups, kept by whoever owns the mesh.

Rules: no port is opened, ranks ask by control messages. Everything is done at once in the inbox
thread, also while a cell runs or a debugger holds another thread. A wait is answered when its keys
are there; it ends without them when who waits dies or gives up, and when the mesh ends. Each
generation of a mesh has a place of its own; those before the last two are forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from monarch_nb.core.key_values import Ended, KeyValues
from monarch_nb.core.wire.frames import CONTROL
from monarch_nb.core.wire.messages import stores as messages
from monarch_nb.core.wire.messages.codec import Done, Refused, encode_answer
from monarch_nb.core.wire.messages.stores import Blob, Found, Number, check_size, left_key
from monarch_nb.meshes.states import ProcsState, StoreName
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Serve, serve

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import MeshState, Supervision


class Waiting(NamedTuple):
    """A wait of a process, by its own number, and where it is answered."""

    process: int
    number: int
    reply: int
    rank: int


Place = KeyValues[Waiting]
Outcome = tuple[object, Sequence[Ended[Waiting]]]
"""An answer, and the waits that have ended."""


class Stores:
    """The places of all meshes that this process owns."""

    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision
        self._places: dict[str, Place] = {}
        self._lock = threading.Lock()  # meshes end on other threads
        supervision.on_exit.append(self._on_exit)
        supervision.on_disowned.append(self._on_disowned)

    def handlers(self) -> list[Serve]:
        calls = [serve(kind, partial(self._on_call, do)) for kind, do in _CALLS]
        return [
            *calls,
            serve(messages.AwaitKeys, self._on_await),
            serve(messages.LeaveWait, self._on_leave_wait),
            serve(messages.LeavePlace, self._on_leave_place),
        ]

    def __len__(self) -> int:
        return len(self._places)

    def _on_call(self, do: Callable[[Place, Any], Outcome], wanted: Any, message: Message) -> None:
        try:
            with self._lock:
                place = self._place(wanted.place)
                answer, ended = do(place, wanted)
                answers = _answers(place, ended)
        except ValueError as error:
            self._proc.answer(message, Refused(str(error)))
            return
        self._proc.answer(message, answer)
        self._tell(answers)

    def _on_await(self, wanted: messages.AwaitKeys, message: Message) -> None:
        who = Waiting(message.source, wanted.number, message.reply, message.rank)
        try:
            with self._lock:
                place = self._place(wanted.place)
                answers = _answers(place, place.wait(who, wanted.keys, wanted.unless))
        except ValueError as error:
            self._proc.answer(message, Refused(str(error)))
            return
        self._tell(answers)

    def _on_leave_wait(self, left: messages.LeaveWait, message: Message) -> None:
        def is_meant(who: Waiting) -> bool:
            return (who.process, who.number) == (message.source, left.number)

        with self._lock:
            place = self._places.get(left.place)
            gone = [] if place is None else place.leave(is_meant)
        self._refuse(gone, "nobody waits for it any more")

    def _on_leave_place(self, left: messages.LeavePlace, _: Message) -> None:
        try:
            with self._lock:
                place = self._place(left.place)
                answers = _answers(place, place.set([left_key(left.rank)], [b""]))
                if not place.missing([left_key(rank) for rank in range(left.size)]):
                    del self._places[left.place]
        except ValueError:  # the mesh is gone, and its places with it
            return
        self._tell(answers)

    def _place(self, name: str) -> Place:
        if (found := self._places.get(name)) is not None:
            return found
        wanted = StoreName.from_text(name)
        state = self._supervision.states.get(wanted.mesh)
        if not isinstance(state, ProcsState) or state.ended is not None:
            raise ValueError("there is no such mesh: it was stopped, or is another's")
        if not state.generation - 1 <= wanted.generation <= state.generation:
            raise ValueError(f"mesh {state.name!r} was healed or regrouped since")
        gone = self._forget(wanted.mesh, before=state.generation - 1)
        self._refuse(gone, f"mesh {state.name!r} was healed or regrouped since")
        made = self._places[name] = KeyValues()
        return made

    def _forget(self, mesh: int, before: int) -> list[Waiting]:
        gone: list[Waiting] = []
        for name in list(self._places):
            of = StoreName.from_text(name)
            if of.mesh == mesh and of.generation < before:
                gone += self._places.pop(name).leave(lambda _: True)
        return gone

    # ends

    def _on_exit(self, ended: Exit) -> None:
        with self._lock:
            for place in self._places.values():
                place.leave(lambda who: who.process == ended.process)

    def _on_disowned(self, state: MeshState) -> None:
        with self._lock:
            gone = self._forget(state.number, before=_AFTER_ALL)
        self._refuse(gone, "the mesh was stopped")

    # answers

    def _tell(self, answers: Sequence[tuple[Sequence[Waiting], Found]]) -> None:
        for who, found in answers:
            self._send(who, found)

    def _refuse(self, who: Sequence[Waiting], why: str) -> None:
        self._send(who, Refused(why))

    def _send(self, who: Sequence[Waiting], answer: object) -> None:
        payload = Payload(encode_answer(answer))  # once: a thousand may wait for the same
        for each in who:
            self._proc.send(each.process, CONTROL, each.reply, payload, rank=each.rank)


_AFTER_ALL: Final = 1 << 62


def _answers(
    place: Place, ended: Sequence[Ended[Waiting]]
) -> list[tuple[Sequence[Waiting], Found]]:
    return [(each.who, _found(place, each.keys, each.missing)) for each in ended]


def _found(place: Place, keys: Sequence[str], missing: list[str]) -> Found:
    return Found(missing, [] if missing else [Blob(value) for value in place.values(keys)])


def _set(place: Place, wanted: messages.SetKeys) -> Outcome:
    for value in wanted.values:
        check_size(value)
    if len(wanted.keys) != len(wanted.values):
        raise ValueError(f"{len(wanted.keys)} keys and {len(wanted.values)} values")
    return Done(), place.set(wanted.keys, wanted.values)


def _check(place: Place, wanted: messages.CheckKeys) -> Outcome:
    return Found(place.missing(wanted.keys), []), []


def _add(place: Place, wanted: messages.AddTo) -> Outcome:
    total, ended = place.add(wanted.key, wanted.amount)
    return Number(total), ended


def _append(place: Place, wanted: messages.AppendTo) -> Outcome:
    before = [] if place.missing([wanted.key]) else place.values([wanted.key])
    check_size(b"".join(before) + wanted.value)
    return Done(), place.append(wanted.key, wanted.value)


def _compare_set(place: Place, wanted: messages.CompareAndSet) -> Outcome:
    check_size(wanted.desired)
    found, ended = place.compare_set(wanted.key, wanted.expected, wanted.desired)
    return Found([], [Blob(found)]), ended


def _delete(place: Place, wanted: messages.DeleteKey) -> Outcome:
    return Number(int(place.delete(wanted.key))), []


def _count(place: Place, _: messages.CountKeys) -> Outcome:
    return Number(len(place)), []


_CALLS: Final[Sequence[tuple[type, Callable[[Place, Any], Outcome]]]] = (
    (messages.SetKeys, _set),
    (messages.CheckKeys, _check),
    (messages.AddTo, _add),
    (messages.AppendTo, _append),
    (messages.CompareAndSet, _compare_set),
    (messages.DeleteKey, _delete),
    (messages.CountKeys, _count),
)
