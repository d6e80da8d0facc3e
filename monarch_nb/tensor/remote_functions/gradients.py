"""Gradients one by one, and functions that bring their own.

Rule: the graph is PyTorch's, of tensors of a mesh or local ones; here it is only walked, in the
order in which PyTorch would. So a program can use a gradient (send it, add it up, step) while those
before it are still to come.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Differentiable = torch.Tensor | GradientEdge
Gradient = torch.Tensor | None


def grad_function(
    function: Callable[..., tuple[object, Callable[..., object]]],
) -> Callable[..., Any]:
    """Make a function that returns `(result, backward)` one that autograd knows.

    `backward` is called with the gradient of each result, and returns that of each positional
    argument: a tuple, or one value where there is one argument; None for none.

    Example:
        >>> @grad_function
        ... def doubled(x):
        ...     return x * 2, lambda grad: grad * 2

    Name and meaning are Monarch's.
    """

    @functools.wraps(function)
    def differentiable(*args: object, **kwargs: object) -> object:
        apply: Any = _Given.apply
        return apply(functools.partial(function, **kwargs), *args)

    return differentiable


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: object) -> object:
        result, ctx.given = function(*args)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[object, ...]:
        found = ctx.given(*grads)
        return (None, *found) if isinstance(found, tuple) else (None, found)


def grad_generator(
    roots: torch.Tensor | Sequence[Differentiable] = (),
    with_respect_to: Iterable[Differentiable] = (),
    grad_roots: Sequence[torch.Tensor | None] = (),
) -> Iterator[torch.Tensor | None]:
    """Yield the gradients of `roots`, one by one; each is computed when it is asked for, no more
    than it needs.

    Args:
        roots: what to differentiate; a tensor, or several.
        with_respect_to: tensors or edges; the gradients come in their order. They come soonest in
            the reverse of the order in which the tensors were used.
        grad_roots: the gradients of the roots; of a root of one element 1, where none is given.

    Yields:
        A gradient, or None where a root does not depend on the tensor. Nothing is added to `.grad`,
        and hooks of tensors are not called. The graph can be used again.

    Raises:
        ValueError: for a root of several elements without a gradient, too many `grad_roots`.
        RuntimeError: for a tensor that requires no gradient.

    Example:
        >>> for p, grad in zip(reversed(params), grad_generator(loss, reversed(params))):
        ...     p.data -= 0.1 * grad.reduce("gpus", "avg")         # doctest: +SKIP

    Name and meaning are Monarch's.
    """
    given = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    if len(grad_roots) > len(given):
        raise ValueError(f"{len(grad_roots)} gradients for {len(given)} roots")
    padded = [*grad_roots, *[None] * (len(given) - len(grad_roots))]
    starts = [(_edge(r), _first(r, grad)) for r, grad in zip(given, padded, strict=True)]
    wanted = [_edge(each) for each in with_respect_to]
    walk = _Walk(starts, wanted)
    return (walk.gradient_of(edge) for edge in wanted)


def _edge(value: Differentiable) -> GradientEdge:
    return value if isinstance(value, GradientEdge) else get_gradient_edge(value)


def _first(root: Differentiable, grad: torch.Tensor | None) -> torch.Tensor:
    if grad is not None:
        return grad
    if not isinstance(root, torch.Tensor) or root.numel() != 1:
        raise ValueError(
            "a root of several elements needs its gradient: grad_roots=[torch.ones_like(root)]"
        )
    return torch.ones_like(root)


class _Walk:
    """The part of a graph that leads from roots to what is wanted, run from node to node."""

    def __init__(
        self, starts: Sequence[tuple[GradientEdge, torch.Tensor]], wanted: Sequence[GradientEdge]
    ) -> None:
        self._needed = _leading_to([edge.node for edge, _ in starts], {e.node for e in wanted})
        self._left = self._counted()
        """How many nodes have not given a node their gradient yet."""
        self._grads: dict[Node, list[Gradient]] = {
            node: [None] * len(node._input_metadata) for node in self._needed
        }
        self._ready: list[tuple[int, int, Node]] = []
        for edge, grad in starts:
            if edge.node in self._left:
                self._add(edge.node, edge.output_nr, grad)
        for node in self._needed:
            self._enter_if_ready(node)

    def gradient_of(self, edge: GradientEdge) -> torch.Tensor | None:
        if edge.node not in self._left:
            return None
        while self._left[edge.node]:
            self._run(heapq.heappop(self._ready)[-1])
        found: torch.Tensor | None = self._grads[edge.node][edge.output_nr]
        return found

    def _run(self, node: Node) -> None:
        targets = [edge for edge in node.next_functions if edge[0] is not None]
        found: Sequence[Gradient] = [None] * len(targets)
        if any(each is not None for each in self._grads[node]):
            with torch.no_grad():
                found = _called(node, self._grads[node])
        for (target, place), grad in zip(targets, found, strict=True):
            if target in self._left:
                if grad is not None:
                    self._add(target, place, grad)
                self._left[target] -= 1
                self._enter_if_ready(target)

    def _add(self, node: Node, place: int, grad: torch.Tensor) -> None:
        grad, known = _fitted(grad, node, place), self._grads[node][place]
        with torch.no_grad():
            self._grads[node][place] = grad if known is None else known + grad

    def _enter_if_ready(self, node: Node) -> None:
        leads_on = any(target in self._left for target, _ in node.next_functions)
        if leads_on and not self._left[node]:
            number = -node._sequence_nr()  # the last one that ran forward is the first to run back
            heapq.heappush(self._ready, (number, id(node), node))

    def _counted(self) -> dict[Node, int]:
        found = dict.fromkeys(self._needed, 0)
        for node in self._needed:
            for target, _ in node.next_functions:
                if target in found:
                    found[target] += 1
        return found


def _leading_to(starts: Iterable[Node], ends: set[Node]) -> list[Node]:
    below: dict[Node, list[Node]] = {}
    todo = list(starts)
    while todo:
        node = todo.pop()
        if node not in below:
            below[node] = [target for target, _ in node.next_functions if target is not None]
            todo += below[node]
    above: dict[Node, list[Node]] = {}
    for node, targets in below.items():
        for target in targets:
            above.setdefault(target, []).append(node)
    found: dict[Node, None] = {}
    todo = [each for each in ends if each in below]
    while todo:
        node = todo.pop()
        if node not in found:
            found[node] = None
            todo += above.get(node, ())
    return list(found)


_PYTHON: Final = torch.autograd.function.BackwardCFunction


def _called(node: Any, grads: Sequence[Gradient]) -> Sequence[Gradient]:
    wanted: Sequence[bool] = [target is not None for target, _ in node.next_functions]
    found: Any
    if isinstance(node, _PYTHON):  # it gives something to each argument, also to those of no tensor
        found, wanted = node.apply(*grads), node.needs_input_grad
    else:
        found = node(*grads)
    given = found if isinstance(found, tuple) else (found,)
    return [grad for grad, is_wanted in zip(given, wanted, strict=False) if is_wanted]


def _fitted(grad: torch.Tensor, node: Node, place: int) -> torch.Tensor:
    # Of the shape and dtype of what it is the gradient of: what was broadcast is added up
    wanted = node._input_metadata[place]
    with torch.no_grad():
        if tuple(grad.shape) != tuple(wanted.shape):
            grad = grad.sum_to_size(wanted.shape)
        return grad if grad.dtype == wanted.dtype else grad.to(wanted.dtype)
