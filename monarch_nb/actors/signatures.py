"""Arguments of a call, checked against the signature of the method before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

Propagate = Literal["cached", "inspect", "mocked"] | Callable[..., object] | None


class BoundCheck:
    """Binds arguments as Python would. Fast where the signature is plain."""

    __slots__ = ("_defaults_from", "_plain", "_positional", "_signature")

    def __init__(self, function: Callable[..., object], skip: int) -> None:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[skip:]
        self._signature = signature.replace(parameters=parameters)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._plain = all(each.kind in kinds for each in parameters)
        self._positional = len(parameters)
        self._defaults_from = sum(each.default is inspect.Parameter.empty for each in parameters)

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Raise `TypeError` ("missing a required argument: 'x'") for arguments that do not fit."""
        if self._plain and not kwargs and self._defaults_from <= len(args) <= self._positional:
            return
        self._signature.bind(*args, **kwargs)
