"""The registry: each target by its name, and its seeds, which are the files of its folder.

A seed whose name begins with `valid` is one that the program makes itself, and is accepted. The
others have broken something once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.fuzz.parsers import browser, control, files, joining, messages, tools, typed

Target = Callable[[bytes], bool]
CORPUS: Final = Path(__file__).parent / "corpus"


def _of(module: ModuleType) -> Mapping[str, Target]:
    return {
        name: each
        for name, each in vars(module).items()
        if getattr(each, "__module__", "") == module.__name__ and not name.startswith("_")
    }


TARGETS: Final[dict[str, Target]] = {
    name: target
    for module in (messages, control, joining, typed, browser, files, tools)
    for name, target in _of(module).items()
}


def seeds(name: str) -> list[Path]:
    """Return the files of a target's corpus, in their order."""
    return sorted((CORPUS / name).iterdir())
