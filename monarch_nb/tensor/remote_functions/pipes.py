"""Pipes: a function that runs on each rank beside its commands, and sends it one value after
another; a data loader, for instance.

Rules: what `recv` returns is known here from the function's `propagate`, a generator that yields
fake values. On a rank the function has a thread of its own; it runs ahead by as many values as the
pipe holds, and ends when the pipe is garbage here, at its next `send` or `recv`.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, final

import torch
from torch.utils import _pytree

from monarch_nb.core.shape.extent import Shape
from monarch_nb.core.wire import pickling
from monarch_nb.tensor.commands.metadata import TensorMeta, meta_of, propagate
from monarch_nb.tensor.commands.propagation import Kwargs
from monarch_nb.tensor.commands.templates import Input
from monarch_nb.tensor.engine.batches import Ref
from monarch_nb.tensor.engine.functions import defined, tensors_in
from monarch_nb.tensor.engine.tensors import tensor_of
from monarch_nb.tensor.meshes.active import get_active_mesh, home_of
from monarch_nb.tensor.ranks.interpreter import here
from monarch_nb.tensor.remote_functions.remoting import Remote, faked, remote, runner
from monarch_nb.tensor.tensor_class import Tensor

Rule = Callable[..., Iterator[object]]
"""Yields fake values, as the function on the ranks will send them."""
SLICE_S: Final = 0.05
"""How often a wait looks for an interrupt and for the end."""


def remote_generator(
    path: str | Callable[..., object], max_messages: int = 50
) -> Callable[[Rule], Callable[..., Pipe]]:
    """Make a generator of fake values a function that opens a pipe on the active mesh.

    Args:
        path: "module.name" of the function that ranks run, or the function: it is called with its
            end of the pipe and the arguments, and sends values, or yields them.
        max_messages: how many values it may be ahead.

    Example:
        >>> @remote_generator("my_data.batches")
        ... def batches(pipe, size):
        ...     while True:
        ...         yield torch.empty(size, 10)
        >>> with mesh.activate():                              # doctest: +SKIP
        ...     loader = batches(32)
        ...     batch = loader.recv()

    Names and meaning are Monarch's.
    """

    def opened(rule: Rule) -> Callable[..., Pipe]:
        function = remote(propagate=rule)(path) if callable(path) else remote(path, propagate=rule)

        def create(*args: object, **kwargs: object) -> Pipe:
            return create_pipe(function, *args, max_messages=max_messages, **kwargs)

        return create

    return opened


def create_pipe(
    function: Remote[..., object], *args: object, max_messages: int = 50, **kwargs: object
) -> Pipe:
    """Start a remote function on each rank of the active mesh, with its end of a pipe.

    Raises:
        TypeError: unless `function` is a `remote` one whose `propagate` is a generator function.
        ValueError: without an active mesh, for tensors of a mesh among the arguments, and for a
            pipe without room.
    """
    if not isinstance(function, Remote) or not inspect.isgeneratorfunction(function._propagate):
        raise TypeError(
            "create_pipe takes a remote function whose propagate is a generator of what it sends: "
            "remote(f, propagate=rule)"
        )
    if tensors_in((args, kwargs)):
        raise ValueError("a pipe's function gets no tensors of a mesh: send them with pipe.send(t)")
    if max_messages < 1:
        raise ValueError(f"max_messages={max_messages}: a pipe holds one value at least")
    return Pipe(function, max_messages, args, kwargs)


@final
class Pipe:
    """The controller's end: of all pipes on the ranks of a mesh. Made by `create_pipe`."""

    def __init__(
        self,
        function: Remote[..., object],
        size: int,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self.mesh = get_active_mesh()
        self._home = home_of(self.mesh)
        self._name = function.__name__
        self._fakes = _Fakes()
        rule = function._propagate
        assert callable(rule)
        self._promises = propagate(rule, (self._fakes, *args), kwargs, self._name)
        given = (runner(function._function), size, self._home.shape, args, kwargs)
        self._ref = Ref(self._home, self.mesh)
        self._issue(_opened, (self._name, pickling.dumps(given)), [], None, [self._ref.id])

    def recv(self) -> Any:
        """Take the next value of each rank: tensors of the mesh, at once. What the function has
        raised comes with the next fetch."""
        try:
            promised = propagate(next, (self._promises,), {}, self._name)
        except StopIteration:
            raise RuntimeError(f"{self._name}: its propagate yields no more values") from None
        leaves, spec = _pytree.tree_flatten(promised)
        new = [meta_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        made = [Ref(self._home, self.mesh) for _ in new]
        self._issue(_received, (Input(0),), [self._ref.id], new, [each.id for each in made])
        tensors = iter([tensor_of(*each) for each in zip(new, made, strict=True)])
        found = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return _pytree.tree_unflatten(found, spec)

    def send(self, value: object) -> None:
        """Give a value, with tensors of the mesh or without, to the function on each rank."""
        tensors = tensors_in(value)
        for each in tensors:
            if each._ref.home is not self._home:
                raise ValueError(
                    f"the pipe of {self._name} is on {self._home.words()}, and {each!r} is not"
                )
        self._fakes.sent.append(_pytree.tree_map(faked, value))
        places = iter(range(1, len(tensors) + 1))

        def place(leaf: object) -> object:
            return Input(next(places)) if type(leaf) is Tensor else leaf

        args = (Input(0), _pytree.tree_map(place, value))
        self._issue(_sent, args, [self._ref.id, *[each._ref.id for each in tensors]], [], [])

    def _issue(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        refs: list[int],
        new: list[TensorMeta] | None,
        made: list[int],
    ) -> None:
        definition = defined(function, args, len(refs), new, self._name, promises=True)
        self._home.engine.issue(
            self._home, definition, [definition.number, *refs, *made], new or ()
        )

    def __repr__(self) -> str:
        return f"<Pipe of {self._name} on {self._home.words()}>"


class _Fakes:
    """The function's end, as `propagate` sees it: what the controller has sent, without values."""

    def __init__(self) -> None:
        self.sent: collections.deque[object] = collections.deque()

    def recv(self) -> object:
        return self.sent.popleft() if self.sent else None

    def send(self, _: object) -> None:
        raise RuntimeError("propagate yields what the function on the ranks sends: yield x")


# ------------------------------------------------------------------------------------- on the ranks


class PipeEnded(Exception):
    """In the function of a pipe: nobody receives any more."""


class RankPipe:
    """The function's end of a pipe, on its rank.

    `ranks` are the rank's coordinates, `sizes` those of the mesh.
    """

    def __init__(self, size: int, shape: Shape) -> None:
        self.ranks = dict(shape.coordinates(here.worker.rank))
        self.sizes = dict(zip(shape.labels, shape.ndslice.sizes, strict=True))
        self._out: queue.Queue[tuple[bool, Any]] = queue.Queue(size)
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended = threading.Event()

    def send(self, value: object) -> None:
        """Send to the commands of the rank; waits while the pipe is full. Raises `PipeEnded`."""
        self._put((True, _pytree.tree_map(_plain, value)))

    def recv(self) -> Any:
        """Take what the controller has sent; waits. Raises `PipeEnded`."""
        while not self._ended.is_set():
            with contextlib.suppress(queue.Empty):
                return self._in.get(timeout=SLICE_S)
        raise PipeEnded

    def _put(self, item: tuple[bool, object]) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._out.put(item, timeout=SLICE_S)
                return
        raise PipeEnded

    def _run(self, function: Callable[..., object], args: Iterable[object], kwargs: Kwargs) -> None:
        with contextlib.suppress(PipeEnded):
            try:
                result = function(self, *args, **kwargs)
                if inspect.isgenerator(result):
                    with contextlib.closing(result):
                        for value in result:
                            self.send(value)
            except PipeEnded:
                raise
            except Exception as error:  # noqa: BLE001  anybody's, told to whoever receives
                self._put((False, error))
            else:
                self._put((False, RuntimeError("the function of the pipe has returned")))


class _RankEnd:
    """The commands' end: held by the ref, and with it the function lives."""

    def __init__(self, name: str, pipe: RankPipe, *call: object) -> None:
        self._out, self.into = pipe._out, pipe._in
        self._over: Exception | None = None
        thread = threading.Thread(target=pipe._run, args=call, name=name, daemon=True)
        weakref.finalize(self, pipe._ended.set)
        thread.start()

    def take(self) -> object:
        while self._over is None:
            with contextlib.suppress(queue.Empty):
                is_value, found = self._out.get(timeout=SLICE_S)
                if is_value:
                    return found
                self._over = found
        raise self._over


def _opened(name: str, packed: bytes) -> _RankEnd:
    function, size, shape, args, kwargs = pickling.loads(packed)
    return _RankEnd(name, RankPipe(size, shape), function, args, kwargs)


def _received(end: _RankEnd) -> object:
    return end.take()


def _sent(end: _RankEnd, value: object) -> None:
    end.into.put(value)


def _plain(leaf: object) -> object:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
