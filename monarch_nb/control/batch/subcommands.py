"""`monarch-nb run | runs | follow | attach | stop`, as they are typed in a terminal.

Rules: a run is a process of its own (`runner.py`), whose record and log these read. What goes
wrong before it starts is one line that ends with what to type.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

from monarch_nb.control.batch import attaching, following, parameters, run_record
from monarch_nb.control.batch.run_record import RUNNING, RunRecord
from monarch_nb.control.jobs.kept import wanted
from monarch_nb.control.jobs.kept.visiting import AskError
from monarch_nb.host.guard import started_at

_RUNNER: Final = (sys.executable, "-P", "-m", "monarch_nb.control.batch.runner")
_MONARCH: Final = "monarch"
_BY_SIGNAL: Final = 130  # ctrl-C, as shells say it
_OF_PAGES: Final = ("JPY_SESSION_NAME", "MONARCH_NB_KEEP_S")
"""Of a notebook in a page: that its meshes are kept by default would outlive a run that is over."""
_POLL_S: Final = 0.1


def add_commands(commands: Any) -> None:
    """Add the commands to those of `monarch-nb`."""
    run = commands.add_parser("run", help="run a notebook without a browser, and follow it")
    run.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    run.add_argument("-p", dest="parameters", default=[], action="append", metavar="NAME=VALUE")
    run.add_argument("--output", type=Path, help="the executed notebook; else NOTEBOOK.run-1.ipynb")
    run.add_argument("--kernel-name", help="else the notebook's own, else monarch")
    run.add_argument("--no-follow", action="store_true", help="return at once; it goes on")
    wanted.add_hosts_options(run)
    run.set_defaults(run=_run)
    runs = commands.add_parser("runs", help="list the runs that go on, and those of a week")
    runs.set_defaults(run=_runs)
    follow = commands.add_parser("follow", help="show what a run says, until it is over")
    follow.set_defaults(run=_follow)
    attach = commands.add_parser(
        "attach", help="open a run in JupyterLab, live; options of that behind --"
    )
    attach.set_defaults(run=_attach)
    stop = commands.add_parser("stop", help="stop a run in order")
    stop.set_defaults(run=_stop)
    for each in (follow, attach, stop):
        each.add_argument("name", nargs="?", metavar="RUN", help="else the newest")


def _run(chosen: argparse.Namespace) -> int:
    from monarch_nb.control.batch import notebook_file  # other commands do without nbformat

    source = chosen.notebook.absolute()
    given = parameters.values(chosen.parameters)
    notebook = notebook_file.read(source)
    notebook_file.prepare(notebook, given)
    kernel = chosen.kernel_name or notebook.metadata.get("kernelspec", {}).get("name", _MONARCH)
    _check_kernel(kernel)
    on = shlex.join(wanted.typed(chosen, chosen.behind))
    output = None if chosen.output is None else chosen.output.absolute()
    _check_output(source, output)
    name, output = run_record.new_folder(source, output)
    host, pid, now_s = os.uname().nodename, os.getpid(), time.time()
    record = RunRecord(
        *(name, host, str(source), str(output), kernel, given, on),
        *(pid, started_at(pid) or 0, now_s),
    )
    record.write()
    try:
        _start(record)
        if chosen.no_follow:
            _say(f"{name} runs and writes {output}. Type: monarch-nb follow {name}\n")
            return 0
        _say(f"{name} runs and writes {output}. Ctrl-C leaves it running.\n")
        return following.follow(record)
    except KeyboardInterrupt:
        return _leave(record)


def _check_kernel(name: str) -> None:
    from jupyter_client.kernelspec import KernelSpecManager

    known = KernelSpecManager().find_kernel_specs()
    if name not in known:
        raise AskError(
            f"there is no kernel {name!r}; known: {', '.join(sorted(known)) or 'none'}. "
            "Type: --kernel-name monarch"
        )


def _check_output(source: Path, output: Path | None) -> None:
    place = output or source
    if not os.access(place.parent, os.W_OK):
        raise AskError(f"{place.parent} cannot be written to. Type: --output FOLDER/FILE.ipynb")
    if output is None:
        return
    if output.exists() and output.samefile(source):
        raise AskError(f"--output {output} is the notebook itself: name another file")
    for run in run_record.all_runs():
        if run.is_alive() and Path(run.output) == output:
            raise AskError(f"{run.name} writes {output}: name another file")


def _start(record: RunRecord) -> None:
    # It must not end with this terminal: a session of its own, and no stream of this one's
    env = {name: value for name, value in os.environ.items() if name not in _OF_PAGES}
    if record.on:
        env["MONARCH_NB_MESH_ON"] = record.on
    with record.log.open("ab") as log:
        process = subprocess.Popen(
            [*_RUNNER, record.name],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while record.now().pid != process.pid:
        if process.poll() is not None and record.now().pid != process.pid:
            raise AskError(f"its process ended with code {process.returncode}. See {record.log}")
        time.sleep(_POLL_S)


def _leave(run: RunRecord) -> int:
    _say(
        f"\n{run.name} goes on. Type: monarch-nb follow {run.name}, or monarch-nb attach "
        f"{run.name}, or monarch-nb stop {run.name}\n"
    )
    return _BY_SIGNAL


def _runs(chosen: argparse.Namespace) -> int:
    del chosen
    known = run_record.all_runs()
    if not known:
        _say("no notebook has run. Type: monarch-nb run NOTEBOOK.ipynb\n")
    for run in known:
        where = "" if run.is_here() else f" on {run.host}"
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began_s))
        _say(f"{run.name}  {_state(run)}{where}  {began}  {run.output}\n")
    return 0


def _state(run: RunRecord) -> str:
    if run.state == RUNNING:
        return f"cell {run.cell}/{run.cells}"
    return run.state


def _follow(chosen: argparse.Namespace) -> int:
    run = _meant(chosen.name)
    try:
        return following.follow(run)
    except KeyboardInterrupt:
        return _leave(run)


def _attach(chosen: argparse.Namespace) -> NoReturn:
    run = _running(chosen.name)
    while not any(run.connections.iterdir()):  # its kernel is about to start
        time.sleep(_POLL_S)
        run = _running(run.name)
    attaching.attach(run, chosen.behind)


def _stop(chosen: argparse.Namespace) -> int:
    run = _running(chosen.name)
    os.kill(run.pid, signal.SIGTERM)
    while (now := run.now()).is_alive():
        time.sleep(_POLL_S)
    _say(f"{run.name} has ended ({now.state}): {now.output}\n")
    return 0


def _running(name: str | None) -> RunRecord:
    run = _meant(name)
    if not run.is_alive():
        raise AskError(f"{run.name} is over ({run.state}): open {run.output}")
    if not run.is_here():
        raise AskError(f"{run.name} runs on {run.host}: type it there")
    return run


def _meant(name: str | None) -> RunRecord:
    known = run_record.all_runs()
    if not known:
        raise AskError("no notebook has run. Type: monarch-nb run NOTEBOOK.ipynb")
    if name is None:
        return known[0]
    found = [run for run in known if run.name == name]
    if not found:
        there = ", ".join(run.name for run in known)
        raise AskError(f"there is no run {name!r}; known: {there}. Type: monarch-nb runs")
    return found[0]


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
