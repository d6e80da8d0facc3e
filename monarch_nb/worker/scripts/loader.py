"""From a path or the name of a module to code that is ready to run as `__main__`.

Rule of the file: what is wrong with the name is a `NoProgram`, one line; what is wrong in the
user's files is the exception that Python raises.
"""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class NoProgram(Exception):
    """There is nothing to run under this name."""


@dataclass(frozen=True)
class Program:
    """Code, the module in which it is to run, and the file that it calls its own."""

    code: CodeType
    main: ModuleType
    argv0: str


def folder_of(name: str, *, is_module: bool) -> Path:
    """Return what is first in `sys.path` while it runs."""
    return _here() if is_module else _path(name).resolve().parent


def load(name: str, *, is_module: bool, where: str = "") -> Program:
    """Find the program of this name. `where` is added to what is said of a missing file."""
    return _module(name) if is_module else _script(name, where)


def _script(name: str, where: str) -> Program:
    path = _path(name)
    if path.is_dir():
        raise NoProgram(f"{name} is a folder{where}; name a script in it, or a module with -m")
    if not path.exists():
        raise NoProgram(_missing(name, path, where))
    try:
        source = path.read_bytes()
    except OSError as error:
        raise NoProgram(f"{name} cannot be read{where}: {error.strerror}") from None
    code = _compiled(path, source)
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", str(path))
    vars(main).update(__file__=str(path), __loader__=loader, __cached__=None)
    return Program(code, main, name)


def _compiled(path: Path, source: bytes) -> CodeType:
    try:
        code: CodeType = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        if path.suffix == ".py" and _is_text(source):
            raise
        raise NoProgram(f"{path.name} is no Python: {error}") from None
    return code


def _is_text(source: bytes) -> bool:
    try:
        return "\0" not in source.decode()
    except UnicodeDecodeError:
        return False


def _missing(name: str, path: Path, where: str) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}{where}, hence no {name}"
    names = [beside.name for beside in path.parent.iterdir()]
    return f"there is no {path.name} in {path.parent}{where}{_nearest(path.name, names)}"


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _path(name: str) -> Path:
    # Absolute; links stay in it, as in the tracebacks of Python
    try:
        return _here() / Path(name).expanduser()
    except RuntimeError:
        raise NoProgram(f"there is no home folder for {name}") from None


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise NoProgram(
            "the working folder of this rank is gone; go to another with os.chdir in a %%mesh cell"
        ) from None


def _module(name: str) -> Program:
    spec = _spec(name)
    if spec.submodule_search_locations is not None:
        spec = _spec(f"{name}.__main__", f"{name} is a package without __main__.py: there is no")
    get_code: Callable[[str], CodeType | None] = getattr(spec.loader, "get_code", lambda _: None)
    code = get_code(spec.name)
    if code is None:
        raise NoProgram(f"{name} is no Python")
    main = ModuleType("__main__")
    vars(main).update(
        __spec__=spec, __file__=spec.origin, __loader__=spec.loader, __package__=spec.parent,
        __cached__=spec.cached,
    )  # fmt: skip
    return Program(code, main, str(spec.origin))


def _spec(name: str, told: str = "there is no") -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # what a package of the user's wants to import
        spec = None
    except ValueError as error:
        raise NoProgram(f"{name} is no name of a module: {error}") from None
    if spec is None:
        raise NoProgram(f"{told} module {name}{_hint(name)}")
    return spec


def _hint(name: str) -> str:
    parent = name.rpartition(".")[0]
    package = sys.modules.get(parent)
    folders = getattr(package, "__path__", None) if parent else [str(Path.cwd())]
    names = [found.name for found in pkgutil.iter_modules(folders)] if folders else []
    return _nearest(name, [f"{parent}.{found}" if parent else found for found in names])
