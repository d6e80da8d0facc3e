"""Cells on a rank: one IPython shell for the life of the process, driven on the main thread.

Rule: `run` always returns an outcome. What a cell raises becomes a record in it; nothing is
printed. IPython's own `run_cell` is not used: it prints tracebacks and compiles each statement
apart. Its parts are: transforms, compiler flags, formatters, magics, events. What a cell shows goes
to the `publish` that came with it; this file knows nothing of sockets.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import inspect
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from IPython.core import application, completer, oinspect, page
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from IPython.utils.process import system as _system  # type: ignore[attr-defined]  # by platform
from traitlets import Type
from traitlets.config import Config

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.points import point
from monarch_nb.core.wire.jsonable import jsonable
from monarch_nb.core.wire.messages.cells import CellOutcome
from monarch_nb.worker.cells import compiler
from monarch_nb.worker.cells.capping import OF_DISPLAY, OF_RESULT, capped
from monarch_nb.worker.cells.completion import Helper
from monarch_nb.worker.cells.interrupts import CellLoop, InterruptGate

MAX_OUT: Final = 8  # results kept in Out: they may be large, and on a GPU

LOADED: Final = (application, completer, oinspect)  # so that zygotes have what shells will need

Publish = Callable[[dict[str, object]], None]
Work = Callable[[], BaseException | None]
"""Returns or raises what it failed with."""

# What IPython's transforms could react to; text without any of it is Python already.
_SPECIAL: Final = re.compile(r"[%!?]|\A\s|^\s*(?:[,;/]|>>>|\.\.\.|In \[)", re.MULTILINE)
_WRAPPERS: Final = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
_SCREENS: Final = ("gtk", "mac", "osx", "qt", "tk", "wx")
_CONFIG: Final = Config({"HistoryManager": {"enabled": False, "hist_file": ":memory:"}})


def _discard(_: dict[str, object]) -> None:
    """No cell has run yet."""


def _same(error: BaseException) -> BaseException:
    return error


class CellShell:
    """Runs cells in the namespace of `__main__`, which is this rank's alone.

    `names` are set in it at the start (rank, size, coords, device ...), and again by `%reset`.
    `publish` gets what is shown before the first cell; `seen` gets what a cell has raised and says
    what it ends with. All methods belong to the main thread, where SIGINT is handled; its handler
    calls `interrupt()`.
    """

    def __init__(
        self,
        names: Mapping[str, object],
        publish: Publish = _discard,
        seen: Callable[[BaseException], BaseException] = _same,
    ) -> None:
        self._gate = InterruptGate()
        self._publish = publish
        self._seen = seen
        self._around: Callable[[Work], Work] | None = None
        self._loop = CellLoop()
        self._compiler = compiler.CellCompiler()
        self._shell = self._made()
        self.give(names)

    def give(self, names: Mapping[str, object]) -> None:
        """Set names that a user has without having made them; `%reset` leaves them."""
        self._shell.give(names)

    @property
    def namespace(self) -> dict[str, object]:
        namespace: dict[str, object] = self._shell.user_ns
        return namespace

    @property
    def size(self) -> int:
        """How many ranks show what this one shows."""
        size = self.namespace.get("size")
        return size if isinstance(size, int) else 1

    @property
    def helper(self) -> Helper:
        return _the_helper()

    def run(self, code: str, *, filename: str, first_line: int, publish: Publish) -> CellOutcome:
        """Run a cell to its end.

        `code` starts at line `first_line` (from 1) of the notebook's cell, for which tracebacks and
        debuggers know the name `filename`. `publish` gets what the cell shows, as JSON-able dicts:
        `type` is execute_result, display_data, update_display_data or clear_output. Displays of
        threads that outlive the cell go to it too, until the next cell runs.
        """
        work = partial(self._perform, self._shell, code, filename, first_line)
        return explain_exit(self.perform(work, publish))

    def watch(self, around: Callable[[Work], Work] | None) -> None:
        """Run each cell from now on as `around` has it; None: as it is."""
        self._around = around

    def perform(self, work: Work, publish: Publish) -> CellOutcome:
        """Do something else in place of a cell: it can be interrupted and may show things."""
        if self._around is not None:
            work = self._around(work)
        started = time.perf_counter()
        shell = self._shell
        self._publish = publish
        shell.displayhook.start()
        error: BaseException | None
        with shell.display_trap:
            try:
                self._gate.open()
                point("cell.begin")
                error = work()
            except BaseException as late:  # noqa: BLE001  an interrupt between cell and bookkeeping
                error = late
            finally:
                self._gate.close()
        hook, took_s = shell.displayhook, time.perf_counter() - started
        return outcome_of(error, hook.text, took_s)

    @property
    def value(self) -> Any:
        """That of the last expression of the last cell."""
        return self._shell.displayhook.value

    def run_callback(self, action: Callable[[], object], publish: Publish) -> None:
        """Run a callback of the user's between two cells, or inside one that waits."""
        outer, is_inside = self._publish, self._gate.is_open
        self._publish = publish
        try:
            with self._shell.display_trap:
                self._gate.open()
                action()
        except BaseException as error:
            if is_inside and isinstance(error, KeyboardInterrupt):
                raise
            self._shell._showtraceback(None, error, None)  # also of `sys.exit`: the rank lives
        finally:
            self._gate.restore(is_inside)
            self._publish = outer

    def while_awaiting(self, action: Callable[[], object]) -> None:
        self._loop.soon(action)

    @contextlib.contextmanager
    def captured(self, publish: Publish) -> Iterator[None]:
        outer, self._publish = self._publish, publish
        try:
            yield
        finally:
            self._publish = outer

    def shield(self) -> contextlib.AbstractContextManager[None]:
        return self._gate.shield()

    def expect(self) -> None:
        """Keep an interrupt from now on for the cell that is about to run."""
        self._gate.expect()

    def rest(self) -> None:
        self._gate.close()

    def interrupt(self) -> bool:
        """Raise `KeyboardInterrupt` in the running cell, from the handler of SIGINT.

        While a message is being sent it is raised right after. False when no cell runs.
        """
        return self._gate.interrupt()

    @property
    def interrupts(self) -> int:
        return self._gate.interrupts

    def show(self, message: dict[str, object]) -> None:
        """Publish on behalf of the running cell, safe from interrupts."""
        with self._gate.shield():
            self._publish(message)

    def close(self) -> None:
        self._loop.close()

    def _made(self) -> _Shell:
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        shell = _the_shell()
        shell.serve(self)
        sys.modules["__main__"] = shell.user_module
        vars(builtins)["get_ipython"] = shell.get_ipython  # for good
        return shell

    def _perform(
        self, shell: _Shell, code: str, filename: str, first_line: int
    ) -> BaseException | None:
        # Run the cell between IPython's events; what it raised, or None
        info = ExecutionInfo(code, False, False, True, None)
        result = _result(shell, info)
        try:
            text, blank = compiler.without_blank_start(code)
            info.transformed_cell = text = shell.transform_cell(text)
            shell.events.trigger("pre_execute")
            shell.events.trigger("pre_run_cell", info)
            self._compiler.remember_source(filename, code, first_line)
            self._execute(
                shell, self._compiler.compile(shell, text, filename, first_line - 1 + blank)
            )
        except BaseException as failed:  # noqa: BLE001  it is the cell's, whatever it is
            result.error_in_exec = self._seen(failed)
        error: BaseException | None = result.error_in_exec
        result.result = shell.displayhook.value
        shell.last_execution_succeeded = error is None
        shell.last_execution_result = result
        shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", result)
        return error

    def _execute(self, shell: _Shell, cell: compiler.CellCode) -> None:
        shell.displayhook.is_quiet = cell.is_quiet
        if cell.awaits:  # all of it inside the loop, so that `create_task` works before an `await`
            self._loop.run(_execute_awaiting(cell, shell.user_ns))
            return
        for code in cell.codes:
            exec(code, shell.user_ns)  # noqa: S102  a cell is code to run


def outcome_of(error: BaseException | None, text: str | None, elapsed_s: float) -> CellOutcome:
    if error is None:
        return CellOutcome("ok", text=text, elapsed_s=elapsed_s)
    _explain(error)
    # where pdb and %debug look for the last error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    record = ErrorRecord.from_exception(error)
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
    return CellOutcome(status, record, text=text, elapsed_s=elapsed_s)


def _explain(error: BaseException) -> None:
    # A model in DDP is asked for something of its own
    if isinstance(error, AttributeError) and type(error.obj).__name__ in _WRAPPERS:
        inner = vars(error.obj).get("_modules", {}).get("module")
        if error.name is not None and hasattr(inner, error.name):
            wrapper = type(error.obj).__name__
            error.add_note(f"{wrapper} wraps a model that has it: try model.module.{error.name}")


def forget_last_error() -> None:
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def explain_exit(outcome: CellOutcome) -> CellOutcome:
    record = outcome.error
    if record is None or record.ename != "SystemExit":
        return outcome
    said = f"the cell called sys.exit({record.evalue}); the rank lives on"
    return outcome._replace(error=dataclasses.replace(record, evalue=said))


def prepare_shell() -> None:
    """Make the shell that every rank will have, in the zygote."""
    main = sys.modules["__main__"]
    formatter = _the_shell().display_formatter
    assert formatter is not None
    formatter.format(None)  # makes what the first display would make
    _the_helper().warm()
    sys.modules["__main__"] = main


def _the_shell() -> _Shell:
    made: _Shell = _Shell.instance(config=_CONFIG, input_transformer_manager=_Transforms())
    return made


@functools.cache
def _the_helper() -> Helper:
    # made in the zygote: it takes 0.7 MB, which ranks then share
    return Helper(_the_shell())


async def _execute_awaiting(cell: compiler.CellCode, namespace: dict[str, object]) -> None:
    for code in cell.codes:
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, namespace)  # noqa: S307
        else:
            exec(code, namespace)  # noqa: S102


def _result(shell: _Shell, info: ExecutionInfo) -> ExecutionResult:
    result = ExecutionResult(info)
    result.execution_count = shell.execution_count
    shell.execution_count += 1
    return result


# ------------------------------------------------------------------------- what IPython is made of


class _Transforms(TransformerManager):
    """IPython's syntax, with line numbers kept and plain Python let through."""

    def __init__(self) -> None:
        super().__init__()
        self._standard = self._all()
        self._done: dict[str, str] = {}

    def transform_cell(self, cell: str) -> str:
        if self._all() != self._standard:  # an extension added its own, which may have a state
            return str(super().transform_cell(cell))
        if not _SPECIAL.search(cell):
            return cell if cell.endswith("\n") else f"{cell}\n"
        if cell not in self._done:
            compiler.keep(
                self._done, cell, str(super().transform_cell(cell)), compiler.MAX_COMPILED
            )
        return self._done[cell]

    def do_one_token_transform(self, lines: list[str]) -> tuple[bool, list[str]]:
        # A command over several lines becomes one; empty lines after it keep the count
        changed, new = super().do_one_token_transform(lines)
        if len(new) < len(lines):
            place = next((i for i, line in enumerate(new) if line != lines[i]), len(new))
            new[place + 1 : place + 1] = ["\n"] * (len(lines) - len(new))
        return changed, new

    def _all(self) -> tuple[object, ...]:
        return *self.cleanup_transforms, *self.line_transforms, *self.token_transformers


class _Hook(DisplayHook):
    """`sys.displayhook` of a cell: publishes a result and keeps the last few."""

    is_quiet = False
    text: str | None = None
    value: Any = None

    def start(self) -> None:
        self.text = self.value = None

    def __call__(self, result: object = None) -> None:
        if result is None or self.is_quiet:
            return
        shell: Any = self.shell  # a trait
        data, metadata = shell.display_formatter.format(result)
        data = capped(data, shell.cells.size, OF_RESULT)
        self.value, self.text = result, data.get("text/plain")
        self._keep_result(shell, result)
        if data:
            shown = {"data": jsonable(data), "metadata": jsonable(metadata)}
            shell.cells.show({"type": "execute_result", **shown})

    def _keep_result(self, shell: InteractiveShell, result: Any) -> None:
        names, out = shell.user_ns, shell.user_ns.get("_oh")
        if isinstance(out, dict) and result is not out:
            compiler.keep(out, shell.execution_count - 1, result, MAX_OUT)
        mine = names.get("_") is self._ and not hasattr(builtins, "_")  # gettext has one there
        self.___, self.__, self._ = self.__, self._, result
        if mine:
            names.update({"_": self._, "__": self.__, "___": self.___})


class _Publisher(DisplayPublisher):
    def publish(
        self,
        data: Mapping[str, object],
        metadata: Mapping[str, object] | None = None,
        source: object = None,  # noqa: ARG002  IPython's, without meaning
        *,
        transient: Mapping[str, object] | None = None,
        update: bool = False,
        **_: object,
    ) -> None:
        kind = "update_display_data" if update else "display_data"
        data = capped(data, self.shell.cells.size, OF_DISPLAY)
        message = {"type": kind, "data": jsonable(data), "metadata": jsonable(metadata or {})}
        self.shell.cells.show({**message, "transient": jsonable(transient or {})})

    def clear_output(self, wait: bool = False) -> None:
        self.shell.cells.show({"type": "clear_output", "wait": wait})


class _Shell(InteractiveShell):
    """IPython without terminal, history, profile folder and threads."""

    displayhook_class = Type(_Hook)
    display_pub_class = Type(_Publisher)
    displayhook: _Hook
    cells: CellShell
    _given: Mapping[str, object] = {}

    def serve(self, cells: CellShell) -> None:
        # Show for these cells; a zygote has made the shell before there were any
        self.cells = cells

    def give(self, names: Mapping[str, object]) -> None:
        self._given = dict(names)
        self.user_ns.update(names)

    def init_user_ns(self) -> None:
        super().init_user_ns()
        self.give(self._given)

    def init_ipython_dir(self, ipython_dir: object) -> None:
        """None: ranks do not write to the user's home."""

    def init_profile_dir(self, profile_dir: object) -> None:  # noqa: ARG002
        db: Any = {}  # %cd and %alias keep things there
        self._db = db

    def init_virtualenv(self) -> None:
        """A rank runs in the environment of the agent."""

    def init_hooks(self) -> None:
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self._show_page), 99)

    def _show_page(self, text: object, *_: object, **__: object) -> None:
        self.display_pub.publish(text if isinstance(text, dict) else {"text/plain": text})

    def system(self, cmd: str) -> None:
        # `!command`. IPython's swallows an interrupt and goes on with the rest of the cell.
        if cmd.rstrip().endswith("&"):
            raise OSError("commands in the background are not supported; use subprocess.Popen")
        before = self.cells.interrupts
        code = self.user_ns["_exit_code"] = _system(self.var_expand(cmd, depth=1))
        if self.cells.interrupts != before:
            raise KeyboardInterrupt
        if code and self.system_raise_on_error:
            raise subprocess.CalledProcessError(code, cmd)

    def enable_gui(self, gui: str | None = None) -> None:
        if gui not in (None, "inline"):
            raise _no_screen(gui)

    def enable_matplotlib(self, gui: str | None = None) -> object:
        # `%matplotlib`: what needs a screen is refused before it is imported
        if str(gui).startswith(_SCREENS):
            raise _no_screen(gui)
        return super().enable_matplotlib(gui)

    def ask_exit(self) -> None:
        raise SystemExit

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> object:
        """Run a magic; the lines of a table are written at once, so that nothing comes between."""
        if magic_name != "whos":
            return super().run_line_magic(magic_name, line, _stack_depth + 1)
        with contextlib.redirect_stdout(io.StringIO()) as table:
            result = super().run_line_magic(magic_name, line, _stack_depth + 1)
        sys.stdout.write(table.getvalue())
        return result

    def safe_execfile(self, fname: object, *where: object, **options: object) -> None:
        # `%run` of a script that fails, fails the cell
        options.setdefault("raise_exceptions", True)
        super().safe_execfile(fname, *where, **options)

    def _showtraceback(self, etype: object, evalue: BaseException, stb: object) -> None:  # noqa: ARG002
        # A `__repr__` or an event of IPython's has raised; the cell goes on
        print(*ErrorRecord.from_exception(evalue).format(), sep="\n", file=sys.stderr)  # noqa: T201


def _no_screen(gui: object) -> UsageError:
    return UsageError(f"a rank has no screen for {gui!r}; use %matplotlib inline")
