"""The variables of cells, seen from a process that has the mesh: `mesh["x"]`, `mesh["x"] = 1`,
`mesh.scatter("x", rows)`, and results that ranks keep for the handle of a cell.

Rules: everything is encoded before anything is sent; every rank answers, and what is wrong becomes
one error that names all ranks it is about. A rank answers between two cells. An interrupted wait
takes nothing back. The ranks' side is `worker/cells/variables.py`.
"""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from monarch_nb.core.errors.folding import fold_outputs, rank_words
from monarch_nb.core.shape.extent import Extent, Shape, Slice
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.core.wire.frames import CONTROL, REPLY, Message
from monarch_nb.core.wire.messages.cells import GetResult, GetVariable, NotDefined, SetVariables
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.data.stacking import cut
from monarch_nb.errors import DecodeError, EncodeError, LimitError, MeshError, RankNameError
from monarch_nb.process import context, current
from monarch_nb.process.futures.calls import Answer, GatherCall, Target
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.process import answer_of

if TYPE_CHECKING:
    from monarch_nb.meshes.states import Part
    from monarch_nb.process.payloads import Payload
    from monarch_nb.process.process import Proc

_SHOWN: Final = 12  # names of variables in an error
P = TypeVar("P", bound="_Put")
_ERRORS: Final = {each.__name__: each for each in (EncodeError, DecodeError, LimitError)}


def get(parts: Sequence[Part], name: str) -> Future[ValueMesh[Any]]:
    _check(name)
    return _asked(parts, GetVariable([name]), name)


def put(parts: Sequence[Part], values: Mapping[str, Any]) -> Future[None]:
    for name in values:
        _check(name)
    proc, target = _target(parts, f"put {' '.join(values)}")
    payload = proc.encode(("set_names", (), dict(values)), target.processes)
    request = SetVariables(list(values))
    return _sent(proc, make(_Put), target, request, [payload] * len(target.ranks))


def scatter(parts: Sequence[Part], name: str, value: object, dim: int = 0) -> Future[None]:
    _check(name)
    proc, target = _target(parts, f"scatter {name}")
    pieces = cut(value, len(target.ranks), dim)
    payloads: list[Payload] = []
    try:
        for piece, process in zip(pieces, target.processes, strict=True):
            payloads.append(proc.encode(("set_names", (), {name: piece}), [process]))
    except BaseException:
        for payload, process in zip(payloads, target.processes, strict=False):
            proc.payloads.take_back(payload, [process])
        raise
    return _sent(proc, make(_Put), target, SetVariables([name]), payloads)


def fetch_result(part: Part, reply: int) -> Future[ValueMesh[Any]]:
    return _asked([part], GetResult(reply), "result")


def _check(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f'mesh[...] takes the name of a variable, as in mesh["x"], not {name!r:.80}; '
            "a part of the mesh is mesh.slice(...)"
        )
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r:.80} cannot be the name of a variable")


def _target(parts: Sequence[Part], what: str) -> tuple[Proc, Target]:
    # The ranks of parts of one mesh, as one. Raises if some are lost or the mesh was stopped.
    state = parts[0].state
    ranks = [rank for part in parts for rank in part.ranks]
    if state.trouble:
        state.check(ranks, f"{state.name}.{what}")
    shape = Extent(["rank"], [len(ranks)]).region.as_shape()
    if len(parts) == 1:
        whole = parts[0].shape
        shape = Shape(whole.labels, Slice.new_row_major(whole.ndslice.sizes))
    processes = [state.processes[rank] for rank in ranks]
    return current.proc(), Target(state, what, processes, ranks, shape, parts)


def _asked(
    parts: Sequence[Part], request: GetVariable | GetResult, name: str
) -> Future[ValueMesh[Any]]:
    proc, target = _target(parts, f"get {name}")
    return _sent(proc, _Get.of(name), target, request, [None] * len(target.ranks))


def _sent(
    proc: Proc, call: P, target: Target, request: object, payloads: Sequence[Payload | None]
) -> P:
    call._begin(proc, target, context.current_tag())
    call.expect()
    processes = call.target.processes
    if all(each is payloads[0] for each in payloads):
        proc.control_all(processes, request, payload=payloads[0], reply=call.port, tag=call.tag)
    else:
        for index, (process, payload) in enumerate(zip(processes, payloads, strict=True)):
            proc.control(
                process, request, payload=payload, reply=call.port, rank=index, tag=call.tag
            )
    proc.look_for_dead(call)
    return call


class _Put(GatherCall):
    __slots__ = ()
    can_be_cancelled = False
    counted_kinds = (REPLY, CONTROL)
    answered_with: type[Done | NotDefined] = Done  # where it is not a value

    def deliver(self, message: Message) -> None:
        if message.rank >= len(self._answers) or self._answers[message.rank] is not None:
            self._proc.discard(message)
            return
        self._answers[message.rank] = message
        self._missing -= 1
        if not self._missing and self._close():
            self._arrive(None)

    def _decode(self, content: Any) -> Any:
        if content is not None:
            raise self._error_of(content)
        answers = zip(self.target.ranks, self._answers, strict=True)
        found = {rank: answer for rank, answer in answers if answer is not None}
        kind = self.answered_with
        said = {rank: answer_of(kind, each) for rank, each in found.items() if each.kind != REPLY}
        refused = {rank: each for rank, each in said.items() if not isinstance(each, Done)}
        if refused:
            for each in found.values():
                self._proc.discard(each)
            raise _refusal(self.target, refused)
        return self._outcome()

    def _outcome(self) -> object:
        return None


class _Get(_Put):
    __slots__ = ("name",)
    name: str
    answered_with = NotDefined

    @classmethod
    def of(cls, name: str) -> _Get:
        call = make(cls)
        call.name = name
        return call

    def _outcome(self) -> ValueMesh[Any]:
        return self._gathered()

    def _reader(self) -> Callable[[int, Answer], Any]:
        name, ranks, read = self.name, self.target.ranks, super()._reader()
        return lambda place, answer: _opened(name, ranks[place], partial(read, place, answer))


def _opened(name: str, rank: int, decode: Callable[[], Any]) -> Any:
    try:
        return decode()[2][name]
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DecodeError(f"{name} of rank {rank} cannot be unpickled here: {said}") from error


def _refusal(target: Target, refused: Mapping[int, NotDefined | Refused]) -> MeshError:
    missing = {rank: each for rank, each in refused.items() if isinstance(each, NotDefined)}
    if missing:
        return _missing(target, missing)
    why = {rank: each for rank, each in refused.items() if isinstance(each, Refused)}
    said = {rank: each.error for rank, each in why.items()}
    text = "; ".join(f"{rank_words(one.ranks)}: {said[one.ranks[0]]}" for one in fold_outputs(said))
    kind = _ERRORS.get(next(iter(why.values())).kind, MeshError)
    return kind(text)


def _missing(target: Target, missing: Mapping[int, NotDefined]) -> RankNameError:
    ranks = tuple(missing)
    name, there = missing[ranks[0]]
    close = difflib.get_close_matches(name, there, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    more = ", ..." if len(there) > _SHOWN else ""
    has = f"{', '.join(there[:_SHOWN])}{more}" if there else "no variables"
    everywhere = len(ranks) == len(target.ranks) > 1
    where = f"any rank of {target.state.name}" if everywhere else rank_words(ranks)
    return RankNameError(
        f"{name!r} is not defined on {where}.{hint} Rank {ranks[0]} has: {has}",
        name=name,
        ranks=ranks,
    )
