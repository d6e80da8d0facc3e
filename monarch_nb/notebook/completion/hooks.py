"""Where IPython and ipykernel ask for completions and help: answered for cells of ours, passed on
for all others.

Two methods are covered on their instances, because the public ways do not do: a matcher cannot say
"nothing" without the controller's names taking its place, and inspection is never told the cell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from IPython.core.completer import Completion, IPCompleter, provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.completion.completer import Help
from monarch_nb.notebook.shells import Kernel, kernel_of


def install(shell: InteractiveShell, found: Help) -> Callable[[], None]:
    """Answer from now on. Returns what ends it."""
    undo = [_complete(shell.Completer, found)]
    if (kernel := kernel_of(shell)) is not None:
        undo.append(_inspect(kernel, found))

    def end() -> None:
        for each in undo:
            each()

    return end


def _complete(completer: IPCompleter, found: Help) -> Callable[[], None]:
    original = completer.completions
    alone = threading.Lock()  # IPython's completer keeps what it works on in itself

    def completions(text: str, offset: int) -> Iterator[Completion]:
        matches = found.complete(text, offset)
        if matches is None:
            with alone:
                theirs = list(original(text, offset))
            yield from theirs
            return
        for match in matches:
            with provisionalcompleter():
                made = Completion(match.start, match.end, match.text, type=match.kind)
            yield made

    vars(completer)["completions"] = completions
    return lambda: _uncover(completer, "completions")


def _inspect(kernel: Kernel, found: Help) -> Callable[[], None]:
    original = kernel.do_inspect

    def do_inspect(
        code: str, cursor_pos: int | None, detail_level: int = 0, *rest: object
    ) -> object:
        offset = len(code) if cursor_pos is None else cursor_pos
        answer = found.inspect(code, offset, detail_level)
        if answer is None:
            return original(code, cursor_pos, detail_level, *rest)
        text = answer["text"]
        data = {} if text is None else {"text/plain": text}
        return {"status": "ok", "found": text is not None, "data": data, "metadata": {}}

    kernel.do_inspect = do_inspect
    return lambda: _uncover(kernel, "do_inspect")


def _uncover(instance: object, method: str) -> None:
    vars(instance).pop(method, None)
