"""The shape of the code, checked on its syntax trees: who imports whom, and what must be nowhere.

The table below is the one of docs/design.md. Every import counts, as an arrow and for circles: at
the top, inside functions, under `if TYPE_CHECKING`, and by the name of a module in a string.
"""

import ast
import fnmatch
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.source import (
    PACKAGE,
    PUBLIC,
    ROOT,
    Import,
    Module,
    box_of,
    dotted,
    imports_of,
    is_ours,
    names_of,
    product,
    python_files,
    strings,
)

MAX_FUNCTION_LINES = 60
MAX_FILES = 12  # in one folder, `__init__.py` aside

FILES = "README.md LICENSE CHANGELOG.md CONTRIBUTING.md Makefile pyproject.toml package.json"
FOLDERS = "benchmarks docs kernel labextension monarch_nb notebooks tests"

EVERYWHERE = {
    "errors",
    "config",
    "late",
}  # of the package root; they import the standard library only
EAGER, LAZY = "at the top", "inside functions"


@dataclass(frozen=True)
class Box:
    """A row of the table: our boxes it may import, and third parties with where that is allowed."""

    ours: str = ""
    third: dict[str, str] | None = None
    only_in: dict[str, str] | None = None  # third party -> the modules that may import it
    never: str = ""  # of the standard library


BOXES = {
    "core": Box(
        third={"cloudpickle": EAGER},
        only_in={"cloudpickle": "pickling"},
        never="asyncio concurrent multiprocessing select selectors signal socket subprocess"
        " threading time",
    ),
    "net": Box(
        "core",
        {"zmq": EAGER, "cryptography": EAGER},
        only_in={"cryptography": "handshake records"},
    ),
    "data": Box("core", {"torch": LAZY, "numpy": LAZY}),
    "process": Box("core net data", {"torch": LAZY}),
    "actors": Box("process core net data", {"torch": LAZY}),
    "meshes": Box("actors process core data", {"torch": LAZY}),
    "services": Box(
        "meshes actors process core net data",
        {"torch": LAZY, "opentelemetry": LAZY},
        only_in={"opentelemetry": "telemetry"},
    ),
    "host": Box("core net data", {"psutil": EAGER}),
    "worker": Box(
        "services meshes actors process debugger core net data",
        {"IPython": EAGER},
        only_in={"IPython": "shell completion"},
    ),
    "elastic": Box(
        "services meshes actors process core data",
        {"torch": EAGER, "numpy": EAGER},
        only_in={"numpy": "moving"},
    ),
    "tensor": Box("services meshes actors process core data", {"torch": EAGER}),
    "control": Box(
        "services meshes actors process host data net core",
        {
            "rich": EAGER,
            "prompt_toolkit": LAZY,
            "ray": LAZY,
            "kubernetes": LAZY,
            "urllib3": LAZY,
            "yaml": LAZY,
            "nbclient": EAGER,
            "nbformat": EAGER,
            "jupyter_server": EAGER,
        },
        only_in={
            "nbclient": "execution",
            "nbformat": "execution notebook_file runner",
            "jupyter_server": "attached_server",
            "prompt_toolkit": "terminal",
            "ray": "ray_job seats",
            "kubernetes": "pods",
            "urllib3": "pods",
            "yaml": "kubernetes_job",
        },
    ),
    "notebook": Box(
        "control core",
        {
            "IPython": EAGER,
            "ipywidgets": EAGER,
            "anywidget": EAGER,
            "rich": EAGER,
            "fastjsonschema": LAZY,
        },
        only_in={"anywidget": "widget", "fastjsonschema": "protocol"},
    ),
    "testing": Box(
        "control host meshes process core", {"pytest": EAGER}, only_in={"pytest": "plugin"}
    ),
    "debugger": Box("core net"),
    "kernel": Box("notebook debugger", {"ipykernel": EAGER}),
    "errors": Box(),
    "config": Box(),
    "late": Box(),
    "compat": Box(third={"pytest": LAZY}, only_in={"pytest": "config"}),
    "job": Box("control services"),  # names, gathered as Monarch's modules have them
    "rdma": Box("services"),
    "spmd": Box("services"),
    "": Box(" ".join(EVERYWHERE)),  # __init__.py itself: lazy names only
}
SPEAK_PUBLIC = {"notebook", "compat", "testing"}  # boxes that use the package as a user would
COMPANIONS = {
    "traitlets": {"IPython", "ipykernel", "nbclient"},
    "jupyter_client": {"ipykernel", "nbclient"},
    "comm": {"IPython", "ipywidgets"},
}  # allowed with those


MAX_PRIVATE_READS = 60  # of tests
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields"}
FOREIGN = {"ipywidgets", "os", "sys", "torch"}


# ------------------------------------------------------------------------------------------- arrows


def test_every_module_is_in_a_box():
    strangers = [module.where for module in product() if module.box not in BOXES]
    assert not strangers, f"no row in the import table for {strangers}"


def test_every_box_is_described_in_the_design():
    rows = re.findall(r"^\| `?(\w+)/?`? \|", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    missing = set(BOXES) - EVERYWHERE - {"", "job", "rdma", "spmd"} - set(rows)
    assert not missing, f"docs/design.md has no row for {missing}"


def test_boxes_import_only_what_the_table_allows():
    wrong = [
        f"{imported.where}: {module.box or PACKAGE} must not import {imported.target}"
        for module in product()
        for imported in imports_of(module)
        if is_ours(imported.target) and not may_import_ours(module, box_of(imported.target))
    ]
    assert not wrong, "\n".join(wrong)


def may_import_ours(module: Module, box: str) -> bool:
    allowed = set(BOXES.get(module.box, Box()).ours.split()) | EVERYWHERE | {module.box}
    if module.box in EVERYWHERE:
        return False
    return box in allowed or (box == PUBLIC and module.box in SPEAK_PUBLIC)


def test_boxes_use_only_their_third_parties():
    wrong = [
        f"{imported.where}: {verdict}"
        for module in product()
        for imported in imports_of(module)
        if (verdict := third_party_verdict(module, imported))
    ]
    assert not wrong, "\n".join(wrong)


def third_party_verdict(module: Module, imported: Import) -> str | None:
    top = imported.target.split(".")[0]
    box = BOXES.get(module.box, Box())
    if is_ours(imported.target) or not top:
        return None
    if top in sys.stdlib_module_names:
        return f"{module.box} must not import {top}" if top in box.never.split() else None
    third = box.third or {}
    if COMPANIONS.get(top, set()) & third.keys():
        return None
    if top not in third:
        return f"{module.box or PACKAGE} must not import {top}"
    if third[top] == LAZY and not imported.lazy:
        return f"{module.box} must import {top} inside functions only"
    only_in = (box.only_in or {}).get(top)
    if only_in and module.name.split(".")[-1] not in only_in.split():
        return f"only {only_in} of {module.box} may import {top}"
    return None


def test_no_import_circles():
    graph = {
        module.name: {
            imported.target
            for imported in imports_of(module)
            if is_ours(imported.target) and imported.target != module.name
        }
        for module in product()
    }
    found = circles(graph)
    assert not found, "\n".join(f"{len(each)} files: {' '.join(each)}" for each in found)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import one another, directly or through others (Tarjan's components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        path.append(name)
        for target in sorted(graph.get(name, ())):
            if target not in order:
                visit(target)
            if target in path:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == order[name]:
            at = path.index(name)
            members = path[at:]
            del path[at:]
            if len(members) > 1:
                found.append(sorted(members))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert circles(graph) == [["a", "b", "c"]]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    program = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement, never",
    [
        ("import monarch_nb.host.agent.agent", "torch IPython numpy ipykernel opentelemetry"),
        ("import monarch_nb.host.zygote.zygote", "torch IPython numpy zmq asyncio email"),
        ("import monarch_nb.control.cli", "torch IPython nbformat jupyter_client"),
        ("import monarch_nb.control.batch.runner", "torch IPython lark"),
        ("import monarch_nb.testing.faults", "torch IPython pytest"),
        ("import monarch_nb.testing.serving", "torch zmq pytest"),
        ("import monarch_nb", "torch IPython zmq ipykernel ipywidgets opentelemetry"),
    ],
)
def test_light_processes_stay_light(statement, never):
    assert not loaded_by(statement) & set(never.split())


# ----------------------------------------------------------------------------- what must be nowhere


UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
UNPICKLING = {"load", "loads", "Unpickler", "open"}


def unpickles(path: str) -> bool:
    parts = path.split(".")
    return (parts[0] in UNPICKLERS and parts[-1] in UNPICKLING) or (
        parts[0] == "torch" and parts[-1] == "load"
    )


def test_only_one_module_unpickles():
    wrong = []
    for module in product():
        if module.name == f"{PACKAGE}.core.wire.pickling":
            continue
        names = names_of(module)
        wrong += [f"{module.where}: imports {path}" for path in names.values() if unpickles(path)]
        wrong += [
            f"{module.where}:{node.lineno}: {dotted(node, names)}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and unpickles(dotted(node, names))
        ]
    assert not wrong, "only core/wire/pickling.py unpickles:\n" + "\n".join(wrong)


def test_only_one_module_makes_sockets():
    wrong = [
        f"{module.where}:{node.lineno}: {ast.unparse(node.func)}"
        for module in product()
        if module.name != f"{PACKAGE}.net.wire"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and opens_a_socket(node.func)
    ]
    assert not wrong, "only net/wire.py binds and connects:\n" + "\n".join(wrong)


def opens_a_socket(called: ast.expr) -> bool:
    """`x.bind`, `x.connect` and their like, unless x is a signature: `signature(f).bind(...)`."""
    if not isinstance(called, ast.Attribute):
        return False
    if called.attr not in {"bind", "bind_to_random_port", "connect", "connect_ex", "create_server"}:
        return False
    receiver = called.value.func if isinstance(called.value, ast.Call) else called.value
    name = ast.unparse(receiver).split(".")[-1].lower()
    return not name.endswith("signature")


def test_no_address_means_every_interface():
    wrong = [
        f"{module.where}:{line}: {text!r}"
        for module in [*product(), *python_files("benchmarks", ".ci")]
        for text, line in strings(module)
        if "0.0.0.0" in text or "tcp://*" in text or text == "::" or "[::]" in text
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_kills_by_name():
    others = [ROOT / "Makefile", *(path for path in (ROOT / ".ci").iterdir() if path.is_file())]
    wrong = [str(path) for path in others if re.search(r"\b(pkill|killall)\b", path.read_text())]
    wrong += [
        f"{module.where}:{line}"
        for module in [*product(), *python_files("tests")]  # benchmarks guard against peers that do
        for text, line in strings(module)
        if module.path != Path(__file__) and re.search(r"\b(pkill|killall)\b", text)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_exception_is_swallowed():
    wrong = [
        f"{module.where}:{node.lineno}"
        for module in [*product(), *python_files("benchmarks", "tests", ".ci")]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    assert not wrong, "`except Exception: pass` at " + ", ".join(wrong)


def swallows(handler: ast.ExceptHandler) -> bool:
    broad = handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}
    return broad and all(isinstance(node, ast.Pass | ast.Continue) for node in handler.body)


def test_tests_never_sleep_to_wait():
    """A sleeping *actor* is workload; a sleeping test is a guess about time."""
    wrong = [
        f"{module.where}:{line}"
        for module in python_files("tests")
        for line in sleeps(module.tree, names_of(module))
    ]
    assert not wrong, "use support.eventually instead of time.sleep at " + ", ".join(wrong)


def test_tests_use_public_names():
    """A test that needs the inside says so in few places, or the inside wants a name of its own."""
    found = [read for module in python_files("tests") for read in private_reads(module)]
    assert len(found) <= MAX_PRIVATE_READS, "\n".join([f"{len(found)}:", *found])


def private_reads(module: Module) -> Iterator[str]:
    """`x._y`, where x is neither `self` nor of a library, and imports of `_y` from ours."""
    names = names_of(module)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            whose = ast.unparse(node.value)
            if whose in {"self", "cls", "super()"} or foreign(dotted(node.value, names)):
                continue
            yield f"{module.where}:{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            for alias in node.names:
                if is_private(alias.name):
                    yield f"{module.where}:{node.lineno}: {node.module}.{alias.name}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def foreign(path: str) -> bool:
    """A dotted name of a library: `os._exit`, `sys._getframe`."""
    return path.split(".", maxsplit=1)[0] in FOREIGN


def sleeps(node: ast.AST, names: dict[str, str]) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and any("Actor" in ast.unparse(b) for b in child.bases):
            continue
        if isinstance(child, ast.Call) and dotted(child.func, names) == "time.sleep":
            yield child.lineno
        yield from sleeps(child, names)


# --------------------------------------------------------------------------------- sizes and layout


def test_functions_stay_small():
    wrong = [
        f"{module.where}:{node.lineno}: {node.name} has {lines} lines"
        for module in [*product(), *python_files("benchmarks", "tests", ".ci")]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_folders_stay_small():
    folders = Counter(m.path.parent for m in product() if m.path.name != "__init__.py")
    for path, kind in (("labextension/src", "*.ts"), ("monarch_nb/notebook/view/front", "*.js")):
        folders += Counter(each.parent for each in (ROOT / path).rglob(kind))
    wrong = [f"{f.relative_to(ROOT)}: {n} files" for f, n in folders.items() if n > MAX_FILES]
    assert not wrong, "\n".join(wrong)


def test_modules_of_a_box_have_names_of_their_own():
    names = Counter(
        f"{module.box}: {module.name.split('.')[-1]}"
        for module in product()
        if module.path.name != "__init__.py"
    )
    twice = sorted(name for name, count in names.items() if count > 1)
    assert not twice, f"more than one module of a name: {twice}"


def test_top_level_of_the_repository():
    ignored = [line.strip().rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    strangers = {
        path.name
        for path in ROOT.iterdir()
        if not path.name.startswith(".")
        and not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored if pattern)
    } - set(f"{FILES} {FOLDERS}".split())
    assert not strangers, f"not meant to be at the top level: {sorted(strangers)}"
