"""Rows 14 to 17: hostile exceptions, constructors that fail, deep stacks, and every way to exit."""

import sys
import time
import types

import pytest

from monarch_nb import ActorError, RankExited, SupervisionError
from tests.faults.actors import Doer, Fussy, Worker
from tests.support import eventually

HOSTILE = {
    "cannot be pickled": """
class Odd(Exception):
    def __reduce__(self): raise TypeError("never")
raise Odd("odd one")
""",
    "holds a lock": """
import threading
error = ValueError("locked"); error.lock = threading.Lock()
raise error
""",
    "cannot be unpickled": """
class Picky(Exception):
    def __init__(self, a, b): super().__init__("picky one")
raise Picky(1, 2)
""",
    "ends the process when it is unpickled": """
import os
class Deadly(Exception):
    def __init__(self, text): super().__init__(text)
    def __reduce__(self): return exec, ("import os; os.getppid() < 0 and os._exit(1); raise
    OSError('x')",)
raise Deadly("deadly one")
""",
    "__str__ raises": """
class Mute(Exception):
    def __str__(self): raise RuntimeError("no text")
raise Mute("mute")
""",
    "__repr__ and __str__ raise": """
class Muter(Exception):
    def __str__(self): raise KeyboardInterrupt
    __repr__ = __str__
raise Muter("muter")
""",
    "100 MB of text": "raise ValueError('x' * 100_000_000)",
    "a cycle of causes": """
a, b = ValueError("chicken"), KeyError("egg")
a.__cause__, b.__cause__ = b, a
raise a
""",
    "a group": """
raise ExceptionGroup("many", [ValueError("v1"), ExceptionGroup("inner", [KeyError("k1")])])
""",
    "10 000 causes": """
error = None
for i in range(10_000):
    try:
        raise ValueError(f"number {i}") from error
    except ValueError as e:
        error = e
raise error
""",
    "a class that lies about itself": """
class Liar(Exception):
    @property
    def __class__(self): raise ZeroDivisionError
raise Liar("liar")
""",
    "notes that are none": """
error = ValueError("noted"); error.__notes__ = 17
raise error
""",
    "a traceback through exec without source": "exec(compile('1/0', '<nowhere>', 'exec'))",
}
TEXTS = {
    "cannot be pickled": "Odd: odd one",
    "holds a lock": "ValueError: locked",
    "cannot be unpickled": "picky one",
    "__str__ raises": "Mute",
    "a group": "k1",
    "a cycle of causes": "chicken",
    "10 000 causes": "number 9999",
    "a traceback through exec without source": "ZeroDivisionError",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_every_exception_ends_the_call_and_the_rank_lives(mesh, goal, case, responsive):
    made = mesh(2)
    at = time.perf_counter()
    error = made.one(1).do.call_one(HOSTILE[case]).exception(timeout=30)
    goal(f"{case}", time.perf_counter() - at, 2.0 if "100" in case or "10 0" in case else 0.1)
    assert isinstance(error, ActorError), repr(error)[:300]
    assert TEXTS.get(case, "") in str(error)
    assert len(str(error)) < 200_000
    assert error.rank == 1
    assert list(made.workers.add.call().get(timeout=5).values()) == [1, 1]


def test_an_exception_class_that_cannot_be_imported_here(mesh):
    made = mesh(1)
    code = (
        "import sys, types\n"
        "module = types.ModuleType('only_over_there'); sys.modules['only_over_there'] = module\n"
        "exec('class Exotic(Exception): pass', module.__dict__)\n"
        "raise module.Exotic('far away')\n"
    )
    error = made.workers.do.call_one(code).exception(timeout=10)
    assert isinstance(error, ActorError)
    assert "Exotic: far away" in str(error)
    assert "only_over_there" not in sys.modules
    assert isinstance(error.exception, Exception)


def test_the_original_is_attached_when_it_survives(mesh):
    error = mesh(1).workers.do.call_one("raise KeyError('lost key')").exception(timeout=10)
    assert type(error.exception) is KeyError
    assert error.__cause__ is error.exception
    assert "KeyError: 'lost key'" in error.remote_traceback


@pytest.mark.parametrize("bad", [(3,), (2, 5)])
def test_a_constructor_that_fails_on_some_of_eight_ranks(mesh, goal, failures, tmp_path, bad):
    made = mesh(8)
    ledger = tmp_path / "ledger"
    ledger.touch()
    at = time.perf_counter()
    fussy = made.procs.spawn("fussy", Fussy, bad, "raise", str(ledger))
    sent_at_once = fussy.hello.call()
    with pytest.raises(ActorError) as caught:
        fussy.initialized.get(timeout=10)
    goal("__init__ raises on 1 of 8: told", time.perf_counter() - at, 0.1)
    assert all(str(rank) in str(caught.value).partition("Traceback")[0] for rank in bad)
    assert "does not want to" in str(caught.value)
    assert isinstance(caught.value.exception, ValueError)
    error = sent_at_once.exception(timeout=10)
    assert isinstance(error, SupervisionError)
    others = sorted(set(range(8)) - set(bad))
    eventually(lambda: sorted(map(int, ledger.read_text().split())) == others, 5.0, "torn down")
    with pytest.raises(SupervisionError, match="constructor of Fussy raised ValueError"):
        fussy.hello.call()
    eventually(lambda: failures, 5.0)
    assert [(each.mesh_name, each.crashed_ranks) for each in failures] == [("fussy", list(bad))]
    assert "lost ranks" in repr(fussy)
    assert list(made.workers.add.call().get(timeout=10).values()) == [1] * 8  # the mesh is fine
    again = made.procs.spawn("fussy", Fussy, (), "raise", str(ledger))
    assert list(again.hello.call().get(timeout=10).values()) == list(range(8))


@pytest.mark.parametrize("how", ["import os; os._exit(4)", "import os; os.abort()"])
@pytest.mark.fault
def test_a_constructor_that_ends_its_process(mesh, how, tmp_path):
    made = mesh(2)
    fussy = made.procs.spawn("fussy", Fussy, (1,), how, str(tmp_path / "ledger"))
    error = fussy.initialized.exception(timeout=10)
    assert isinstance(error, RankExited)
    assert error.ranks == (1,)
    assert isinstance(made.one(1).add.call_one, types.MethodType)


@pytest.mark.parametrize(
    "how", ["raise SystemExit(3)", "raise KeyboardInterrupt", "raise GeneratorExit"]
)
def test_a_constructor_that_raises_a_base_exception(mesh, how, tmp_path):
    made = mesh(2)
    fussy = made.procs.spawn("fussy", Fussy, (1,), how, str(tmp_path / "ledger"))
    error = fussy.initialized.exception(timeout=10)
    assert isinstance(error, ActorError)
    assert error.rank == 1
    assert list(made.workers.add.call().get(timeout=10).values()) == [1, 1]


def test_a_recursion_without_end_is_an_error(mesh, goal):
    made = mesh(1)
    at = time.perf_counter()
    code = "def f(): return f()\nglobals()['f'] = f\nf()"
    error = made.workers.do.call_one(code).exception(timeout=20)
    goal("RecursionError", time.perf_counter() - at, 0.1)
    assert isinstance(error.exception, RecursionError)
    assert len(str(error)) < 50_000
    assert made.workers.add.call_one().get(timeout=5) == 1


def test_a_memory_error_is_one_of_the_call(mesh, goal):
    made = mesh(1)
    at = time.perf_counter()
    error = made.workers.do.call_one("bytearray(1 << 60)").exception(timeout=20)
    goal("MemoryError", time.perf_counter() - at, 0.1)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, MemoryError)
    assert made.workers.add.call_one().get(timeout=5) == 1


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


def test_a_deeply_nested_argument_or_result_is_an_error(mesh):
    made = mesh(1)
    with pytest.raises(TypeError, match="pickled"):
        made.workers.echo.call(nested(100_000))
    code = "from tests.faults.test_errors import nested; result = nested(100_000)"
    error = made.workers.do.call_one(code).exception(timeout=20)
    assert isinstance(error, ActorError)
    assert "pickled" in str(error)
    assert made.workers.add.call_one().get(timeout=5) == 1


OVERFLOW = """
import sys
sys.setrecursionlimit(10**9)
global deep
def deep(n): return max(n, key=lambda _: deep(n))
deep([1])
"""


@pytest.mark.fault
def test_an_overflow_of_the_c_stack_is_an_exit_with_its_stack(mesh, goal):
    made = mesh(2)
    error = made.one(1).do.call_one(OVERFLOW).exception(timeout=40)
    assert isinstance(error, RankExited)
    assert error.signal == 11
    assert "Fatal Python error: Segmentation fault" in error.log_tail
    assert "deep" in error.log_tail
    assert "Segmentation fault" in str(error)


@pytest.mark.fault
def test_a_segmentation_fault_is_an_exit_with_its_stack(mesh, goal):
    made = mesh(2)
    at = time.perf_counter()
    error = made.one(1).do.call_one("import ctypes; ctypes.string_at(0)").exception(timeout=20)
    goal("SIGSEGV: told with its stack", time.perf_counter() - at, 0.1)
    assert isinstance(error, RankExited)
    assert error.signal == 11
    assert "string_at" in error.log_tail
    assert made.one(0).add.call_one().get(timeout=5) == 1


@pytest.mark.parametrize("cls", [Worker, Doer])
@pytest.mark.parametrize(
    "code, kind, text",
    [
        ("sys.exit(3)", RuntimeError, "the endpoint called sys.exit(3)"),
        ("raise SystemExit", RuntimeError, "sys.exit"),
        ("raise SystemExit('bye')", RuntimeError, "bye"),
        ("raise KeyboardInterrupt", KeyboardInterrupt, "KeyboardInterrupt"),
        ("exit()", RuntimeError, "exit"),
    ],
)
def test_what_raises_ends_the_call_only(mesh, goal, code, kind, text, cls):
    made = mesh(1)
    doers = made.procs.spawn("doers", cls)
    at = time.perf_counter()
    error = doers.do.call_one(code).exception(timeout=10)
    goal(f"{code}", time.perf_counter() - at, 0.1)
    assert isinstance(error, ActorError), repr(error)
    assert isinstance(error.exception, kind)
    assert text in str(error)
    assert doers.add.call_one().get(timeout=5) == 1


@pytest.mark.parametrize("cls", [Worker, Doer])
@pytest.mark.parametrize(
    "code, text",
    [
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise BaseExceptionGroup('worse', [KeyboardInterrupt(), ValueError('v2')])", "worse"),
    ],
)
def test_other_base_exceptions_are_told_and_the_mesh_goes_on(mesh, failures, cls, code, text):
    """As in Monarch: other base exceptions are the actor's end, told to its owner."""
    made = mesh(1)
    doers = made.procs.spawn("doers", cls)
    error = doers.do.call_one(code).exception(timeout=10)
    assert isinstance(error, (SupervisionError, ActorError))
    assert text in str(error)
    assert made.workers.add.call_one().get(timeout=5) == 1


@pytest.mark.fault
@pytest.mark.parametrize(
    "code, exitcode, number",
    [
        ("import os; os._exit(3)", 3, None),
        ("import os; os._exit(0)", 0, None),
        ("import os; os.abort()", None, 6),
        ("import os; os.kill(os.getpid(), 9)", None, 9),
        ("import os; os.kill(os.getpid(), 15)", None, 15),
        ("import os; os.execv('/bin/true', ['true'])", 0, None),
    ],
)
def test_what_ends_the_process_is_an_exit(mesh, goal, code, exitcode, number):
    made = mesh(2)
    at = time.perf_counter()
    error = made.one(1).do.call_one(code).exception(timeout=10)
    goal(f"{code.partition('; ')[2]}", time.perf_counter() - at, 0.1)
    assert isinstance(error, RankExited)
    assert (error.exitcode, error.signal) == (exitcode, number)
    assert error.ranks == (1,)
    assert made.one(0).add.call_one().get(timeout=5) == 1
