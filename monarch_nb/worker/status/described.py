"""The variables of this rank's cells, described for somebody who looks on: type, shape, memory.

Rules: no code of the user's runs for that, no `__repr__` and no property, whatever an object is:
what is read are slots of CPython, of PyTorch and NumPy, of types that are exactly theirs. Nothing
waits for a GPU. It is done on a thread of its own, as the last one to let go of an object, which a
cell has just thrown away, runs its `__del__`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from monarch_nb.core.wire.messages.status import ListVariables, RankVariables, Variable
from monarch_nb.worker.status import contents

MAX_VARIABLES: Final = 500
MAX_NAME: Final = 200
MAX_TEXT: Final = 60
MAX_BITS: Final = 256
MAX_TENSORS: Final = 20_000  # of one module
_SHELLS: Final = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})  # IPython's own
_PLAIN: Final = (bool, int, float, complex, type(None), str)
_SIZED: Final = (list, tuple, set, frozenset, dict, str, bytes, bytearray)
_CODE: Final = (ModuleType, FunctionType, BuiltinFunctionType)

# of any class: a metaclass of the user's may have its own
_name_of = vars(type)["__qualname__"].__get__
_module_of = vars(type)["__module__"].__get__
_bases_of = vars(type)["__mro__"].__get__


def _is_among(kind: type, kinds: Iterable[type]) -> bool:
    # not `in`, for which a metaclass may have an `__eq__`
    return any(each is kind for each in kinds)


class Describer:
    """Describes what is in `namespace()` beside the names that are `given` to every rank."""

    def __init__(
        self, namespace: Callable[[], Mapping[str, object]], given: frozenset[str]
    ) -> None:
        self._namespace = namespace
        self._hidden = given | _SHELLS

    def all(self, asked: ListVariables) -> RankVariables:
        """Describe data, by name; not modules, functions and classes. The newest, of too many."""
        found = dict(self._namespace())  # at once: the main thread may be changing it
        names = [name for name in found if type(name) is str and self._is_shown(name, found[name])]
        shown = sorted(names[-MAX_VARIABLES:])
        told = [_described(name, found[name]) for name in shown]
        for place, one in enumerate(told):
            if one.name in (asked.contents or ()):
                told[place] = one._replace(value=_summary(found[one.name]) or one.value)
        return RankVariables(told, len(names) - len(shown))

    def _is_shown(self, name: str, value: object) -> bool:
        kind = type(value)
        is_code = _is_among(kind, _CODE) or _is_among(type, _bases_of(kind))
        return not (name.startswith("_") or name in self._hidden or is_code)


def _described(name: str, value: object) -> Variable:
    kind: Any = type(value)
    told = Variable(name[:MAX_NAME], type_name(kind))
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if _is_among(kind, _PLAIN):
        told = told._replace(value=_text(value))
    if _is_among(kind, _SIZED):
        return told._replace(length=len(value))  # type: ignore[arg-type]
    if kind is getattr(numpy, "ndarray", None):
        array: Any = value
        shape, dtype = list(array.shape), str(array.dtype)
        return told._replace(shape=shape, dtype=dtype, nbytes=array.nbytes, device="cpu")
    if torch is None or not hasattr(torch, "nn"):  # it is being imported
        return told
    if is_tensor(torch, kind):
        shape, dtype, device, nbytes = head_of_tensor(torch, value)
        return told._replace(shape=shape, dtype=dtype, device=device, nbytes=nbytes)
    if _is_among(torch.nn.Module, _bases_of(kind)):
        return _with_parameters(torch, told, value)
    return told


def _summary(value: Any) -> str | None:
    kind = type(value)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray:
        return contents.of_arrays(numpy, [value])
    if torch is None or not hasattr(torch, "nn"):
        return None
    if is_tensor(torch, kind):
        return contents.of_tensors(torch, [value])
    if _is_among(torch.nn.Module, _bases_of(kind)):
        return contents.of_tensors(torch, (each for _, each in _tensors_of(torch, value)))
    return None


def type_name(kind: type) -> str:
    """Return the name of a class with that of its module; short for Python's own and the user's."""
    module, name = _module_of(kind), str(_name_of(kind))
    is_short = type(module) is not str or module in ("builtins", "__main__")
    return (name if is_short else f"{module}.{name}")[:MAX_NAME]


def _text(value: Any) -> str:
    if type(value) is int and value.bit_length() > MAX_BITS:
        return f"{value.bit_length()} bits"
    if type(value) is str and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]!r}..."
    return repr(value)


def is_tensor(torch: Any, kind: type) -> bool:
    """Tell whether it is one of PyTorch's own kinds, as DTensor is: of others an attribute may run
    anything."""
    module = _module_of(kind)
    is_own = type(module) is str and module.partition(".")[0] == "torch"
    return is_own and _is_among(torch.Tensor, _bases_of(kind))


def head_of_tensor(torch: Any, tensor: object) -> tuple[list[int], str, str, int]:
    """Return its shape, dtype, device, and how many bytes its elements have."""
    base = torch._C.TensorBase
    with torch._C.DisableTorchFunctionSubclass():
        shape = list(base.shape.__get__(tensor))
        dtype, device = base.dtype.__get__(tensor), str(base.device.__get__(tensor))
    return shape, str(dtype).removeprefix("torch."), device, math.prod(shape) * dtype.itemsize


def _with_parameters(torch: Any, told: Variable, module: object) -> Variable:
    # of a model: how many parameters, and the memory of these and its buffers
    size = nbytes = 0
    dtypes: dict[str, None] = {}
    devices: dict[str, None] = {}
    for is_parameter, tensor in _tensors_of(torch, module):
        shape, dtype, device, its_bytes = head_of_tensor(torch, tensor)
        size += math.prod(shape) if is_parameter else 0
        nbytes += its_bytes
        dtypes[dtype] = devices[device] = None
    where, kinds = ", ".join(devices) or None, ", ".join(dtypes) or None
    return told._replace(parameters=size, nbytes=nbytes, dtype=kinds, device=where)


def _tensors_of(torch: Any, module: object) -> Iterator[tuple[bool, object]]:
    contents = vars(torch.nn.Module)["__dict__"].__get__
    waiting, seen = [module], set[int]()
    while waiting and len(seen) < MAX_TENSORS:
        one = waiting.pop()
        if id(one) in seen or not _is_among(torch.nn.Module, _bases_of(type(one))):
            continue
        seen.add(id(one))
        held = contents(one)
        for name in ("_parameters", "_buffers"):
            for tensor in _values(held.get(name)):
                if id(tensor) not in seen and is_tensor(torch, type(tensor)):
                    seen.add(id(tensor))
                    yield name == "_parameters", tensor
        waiting += _values(held.get("_modules"))


def _values(found: object) -> list[object]:
    return list(dict.values(found)) if issubclass(type(found), dict) else []  # type: ignore[arg-type]
