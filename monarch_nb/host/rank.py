"""`python -m monarch_nb.host.rank`: what a command that starts a rank executes in the end.

Rule: until it is known that this interpreter fits, nothing but the standard library is imported and
nothing is written that an older Python could not read, so that it can say what is wrong. Then it
is arranged that the process ends with its host, and only then anything of the user's is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from monarch_nb.host.launch import Record

BOOT_VARIABLE: Final = "MONARCH_NB_BOOT"


def main() -> None:
    """Be the rank that the file named by `MONARCH_NB_BOOT` describes."""
    boot = _take_record()
    _check_versions(boot.get("python"), boot["rank"])
    from monarch_nb.host.zygote import child

    child.exit_after(lambda: _run(boot))


def _take_record() -> Record:
    # whoever reads it removes it: a rank is there once
    path = os.environ.pop(BOOT_VARIABLE, "")
    if not path:
        raise SystemExit(
            f"monarch_nb: {BOOT_VARIABLE} is not set. This program is started by spawn_procs, not "
            "by hand; a command around it has to pass its environment on"
        )
    try:
        with open(path) as file:  # noqa: PTH123  nothing is loaded that is not needed
            found: Record = json.load(file)
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        raise SystemExit(
            f"monarch_nb: {path} is gone: this rank was started before, or has been given up. A "
            "command may execute monarch_nb.host.rank only once"
        ) from None
    return found


def _check_versions(asker: Record | None, rank: int) -> None:
    # Refuse to run code that was pickled by another minor version of Python: it is bytecode
    if asker is None:
        return
    from monarch_nb.config import VERSION

    theirs, ours = asker["version"], list(sys.version_info[:3])
    if theirs[:2] != ours[:2]:
        wanted = ".".join(str(number) for number in theirs[:2])
        raise SystemExit(
            f"monarch_nb: rank {rank} runs Python {_dotted(ours)} ({sys.executable}), who has "
            f"spawned it runs Python {_dotted(theirs)}; functions travel as bytecode, which another"
            f" minor version cannot run. Start ranks with a Python {wanted}"
        )
    if asker["monarch_nb"] != VERSION:
        raise SystemExit(
            f"monarch_nb: rank {rank} has monarch_nb {VERSION} ({sys.executable}), who has spawned "
            f"it has monarch_nb {asker['monarch_nb']}. Install the same version in both"
        )


def _dotted(version: list[int]) -> str:
    return ".".join(str(number) for number in version)


def _run(boot: Record) -> int:
    from monarch_nb.host.zygote import child

    _die_with_host(boot)
    child.open_streams()
    child.prepare_interpreter(boot, _import_path(boot), [])  # before anything starts threads
    for name in (*boot["preload"], *(boot["libraries"] or ())):
        with contextlib.suppress(ModuleNotFoundError):  # an interpreter without torch is one
            importlib.import_module(name)
    child.reseed()
    try:
        found = child.find_main(boot["main"])
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"monarch_nb: {sys.executable or 'this Python, which does not know its path,'} has no "
            f"module {error.name!r}; install monarch_nb there with all that it needs"
        ) from None
    return found(boot)


def _die_with_host(boot: Record) -> None:
    # the parent may be a wrapper
    from monarch_nb.host import guard

    guard.die_with_parent(signal.SIGKILL, os.getppid())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    try:
        lifeline = guard.die_with_pipe(boot["lifeline"], boot["zygote"])
    except FileNotFoundError:
        raise SystemExit("monarch_nb: the host has ended") from None
    if select.select([lifeline], [], [], 0)[0]:  # nobody holds the other end: no signal will come
        raise SystemExit("monarch_nb: the host has ended")


def _import_path(boot: Record) -> list[str] | None:
    """As for a fork in the same installation; in another one, libraries are its own.

    Then what comes from the one who spawned it is the folder and what else is neither the standard
    library nor `site-packages` there.
    """
    asker = boot.get("python")
    if asker is None or asker["prefix"] == sys.prefix:
        return boot.get("path")
    return list(dict.fromkeys([*asker["path"], *sys.path]))


if __name__ == "__main__":
    main()
