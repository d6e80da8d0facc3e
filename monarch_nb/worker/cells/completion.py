"""What a rank can say about its names while somebody types: completions, and help on one.

Rules of the file: it may run while user code runs, so namespaces are read and never written, no
property is called and, as long as the rank is busy, no `__repr__`: that of a tensor would wait for
its device. IPython completes, without jedi: its first answers take 0.4 to 2.5 s and 90 MB, in each
rank. It knows nothing of messages and threads.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
import types
from collections.abc import Mapping
from typing import Final

from IPython.core.completer import Completion, IPCompleter, provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.oinspect import Inspector
from IPython.utils.tokenutil import token_at_cursor

from monarch_nb.core.wire.messages.cells import Complete, Completions, Help, Inspect, Match

MAX_NAMES: Final = 1_000  # of a namespace, kept by the controller for when a rank cannot answer
MAX_TEXT: Final = 200_000  # characters of help; the source of a module may be long

_OWNER: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\Z")  # what stands before a dot
_NO_STRING_FORM: Final = 2  # of IPython's detail levels, 0 and 1, none
_MODULES: Final = (types.ModuleType,)
_FUNCTIONS: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    staticmethod,
    classmethod,
)


class Helper:
    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._inspector = Inspector(theme_name=shell.colors, parent=shell)
        self._completer = IPCompleter(
            shell=shell,
            namespace=shell.user_ns,
            global_namespace=shell.user_global_ns,
            use_jedi=False,
        )
        self._completer.custom_completers = shell.Completer.custom_completers

    def complete(self, asked: Complete) -> Completions:
        with provisionalcompleter():
            found = list(self._completer.completions(asked.code, asked.cursor))
        return Completions(self._typed(asked.code, found), self._names())

    def inspect(self, asked: Inspect, is_busy: bool) -> Help:
        name = token_at_cursor(asked.code, asked.cursor)
        info = self._shell._object_find(name)
        if not info.found:
            return Help(None)
        self._inspector.str_detail_level = _NO_STRING_FORM if is_busy else 0
        bundle = self._inspector._get_info(info.obj, name, info=info, detail_level=asked.detail)
        return Help(bundle["text/plain"][:MAX_TEXT])

    def warm(self) -> None:
        """Load what first answers load; it takes 40 ms and 2 MB."""
        self.complete(Complete("len", 3))
        self.inspect(Inspect("len", 3, 0), is_busy=False)

    def _typed(self, code: str, found: list[Completion]) -> list[Match]:
        owner = next((self._owner(code[: one.start]) for one in found if _has_dot(one)), None)
        return [
            Match(one.text[1:], one.start + 1, one.end, _kind_of_attribute(owner, one.text[1:]))
            if _has_dot(one)
            else Match(one.text, one.start, one.end, self._kind_of_match(one))
            for one in found
        ]

    def _kind_of_match(self, one: Completion) -> str:
        if one.type != "variable":
            return "" if one.type == "<unknown>" else str(one.type)
        if keyword.iskeyword(one.text):
            return "keyword"
        for names in (self._shell.user_ns, vars(builtins)):
            if one.text in names:
                return kind(names[one.text])
        return "instance"

    def _owner(self, code: str) -> object:
        # What the code ends in, as far as that can be told without running anything
        match = _OWNER.search(code)
        if match is None:
            return None
        first, *rest = match[0].split(".")
        value = self._shell.user_ns.get(first)
        for name in rest:
            value = inspect.getattr_static(value, name, None)
        return value

    def _names(self) -> dict[str, str]:
        names: Mapping[str, object] = self._shell.user_ns
        hidden = self._shell.user_ns_hidden
        mine = [name for name in list(names) if name[:1] != "_" and name not in hidden]
        return {name: kind(names.get(name)) for name in mine[-MAX_NAMES:]}


def kind(value: object) -> str:
    """Name its kind as front ends do, for their icons. Asks the type only: `__class__` may be
    anything."""
    of = type(value)
    if issubclass(of, _MODULES):
        return "module"
    if issubclass(of, type):
        return "class"
    if issubclass(of, property):
        return "property"
    return "function" if issubclass(of, _FUNCTIONS) else "instance"


def _has_dot(one: Completion) -> bool:
    return one.type == "attribute" and one.text[:1] == "."


def _kind_of_attribute(owner: object, name: str) -> str:
    return kind(inspect.getattr_static(owner, name, None))
