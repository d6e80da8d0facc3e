"""Arguments of a call, checked against the signature of the method before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

Propagate = Literal["cached", "inspect", "mocked"] | Callable[..., object] | None


class BoundCheck:
    """Binds arguments as Python would. Fast where the signature is plain."""

    __slots__ = ("_defaults_from", "_function", "_plain", "_positional", "_signature")

    def __init__(self, function: Callable[..., object], skip: int) -> None:
        self._function = function
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[skip:]
        self._signature = signature.replace(parameters=parameters)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._plain = all(each.kind in kinds for each in parameters)
        self._positional = len(parameters)
        self._defaults_from = sum(each.default is inspect.Parameter.empty for each in parameters)

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Raise `TypeError` ("Trainer.step(x): missing a required argument: 'x'") for arguments
        that do not fit."""
        if self._plain and not kwargs and self._defaults_from <= len(args) <= self._positional:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._called()}: {error}") from None

    def _called(self) -> str:
        # `Trainer.step(x, *more)`, `Trainer(config)`; without defaults, which may be long
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        short = name.rpartition("<locals>.")[2].removesuffix(".__init__")
        parameters = self._signature.parameters.values()
        bare = [each.replace(default=each.empty, annotation=each.empty) for each in parameters]
        return f"{short}{inspect.Signature(bare)}"
