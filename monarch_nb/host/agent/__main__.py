"""`python -m monarch_nb.host.agent`, with its boot record as a line on standard input.

The first zygote is started before the agent's own modules are imported: both take their time, at
the same time.
"""

from __future__ import annotations

import os
import sys

from monarch_nb.host import guard
from monarch_nb.host.agent.zygote_client import Starter
from monarch_nb.host.launch import AgentBoot


def main() -> None:
    try:
        boot = AgentBoot.read(0)
        if boot.owner_pid is not None:
            guard.wake_at_end_of(boot.owner_pid)
    except (EOFError, ProcessLookupError) as error:
        from monarch_nb.host import rundir

        rundir.sweep_all()
        raise SystemExit(str(error)) from None
    guard.adopt_orphans()
    starter = Starter()
    first = starter.start()
    from monarch_nb.host.agent.agent import Agent

    Agent(boot, starter, first).run()
    sys.stderr.flush()
    os._exit(0)  # all is ended and given back; the interpreter's own end takes longer than ours


if __name__ == "__main__":
    main()
