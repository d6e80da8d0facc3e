"""The project's code as syntax trees: modules, imports, names, strings."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "monarch_nb"
KERNEL = "monarch_kernel"
PUBLIC = "the public names"  # `from monarch_nb import ...`


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def box(self) -> str:
        parts = self.name.split(".")
        if parts[0] == KERNEL:
            return "kernel"
        return parts[1] if len(parts) > 1 else ""

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))


@dataclass(frozen=True)
class Import:
    module: Module
    target: str  # dotted; `from a import b` means `a.b` if that is a module of ours, else `a`
    line: int
    lazy: bool

    @property
    def where(self) -> str:
        return f"{self.module.where}:{self.line}"


@functools.cache
def parse(path: Path, name: str = "") -> Module:
    text = path.read_text()
    return Module(name, path, ast.parse(text, str(path)), text.count("\n"))


@functools.cache
def product() -> tuple[Module, ...]:
    """Every module of the package and of the kernel."""
    found = []
    for base, top in ((ROOT, PACKAGE), (ROOT / "kernel", KERNEL)):
        for path in sorted((base / top).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(parse(path, name))
    return tuple(found)


def python_files(*folders: str) -> list[Module]:
    return [parse(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def walk_imports(
    node: ast.AST, lazy: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, lazy
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from walk_imports(child, lazy or function or typing)


@functools.cache
def imports_of(module: Module) -> tuple[Import, ...]:
    """Its imports, and the modules of ours that it names in strings."""
    ours = {other.name for other in product()}
    found = []
    for node, lazy in walk_imports(module.tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            base = absolute(module, node)
            full = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in ours else base for name in full]
        found += [Import(module, target, node.lineno, lazy) for target in targets]
    named = [(text, line) for text, line in strings(module) if "." in text and text in ours]
    found += [Import(module, text, line, lazy=True) for text, line in named]
    return tuple(found)


def absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    is_package = module.path.name == "__init__.py"
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, node.module] if node.module else parts)


def is_ours(target: str) -> bool:
    return target.partition(".")[0] in {PACKAGE, KERNEL}


def box_of(target: str) -> str:
    top, *rest = target.split(".")
    if top == KERNEL:
        return "kernel"
    return rest[0] if rest else PUBLIC


def names_of(module: Module) -> dict[str, str]:
    """What each imported name of the module stands for, dotted."""
    found = {}
    for node, _ in walk_imports(module.tree):
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                found[alias.asname or alias.name] = f"{absolute(module, node)}.{alias.name}"
            elif alias.asname:
                found[alias.asname] = alias.name
            else:
                top = alias.name.split(".")[0]
                found[top] = top
    return found


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """`pickle.loads` for whatever alias it goes by; empty for what is not a path of names."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (base := dotted(node.value, names)):
        return f"{base}.{node.attr}"
    return ""


def docstrings(tree: ast.Module) -> set[int]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }


def strings(module: Module) -> Iterator[tuple[str, int]]:
    """String constants with their lines, without docstrings."""
    skip = docstrings(module.tree)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip:
            yield node.value, node.lineno
