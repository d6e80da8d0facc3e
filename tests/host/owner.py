"""A process that owns a host, for tests that kill the owner. Prints what it has started."""

import json
import sys
import threading

from tests.host.support import Host


def main(count: int) -> None:
    made = Host()
    made.hear("ready", within_s=60)
    procs = made.spawn(count)
    made.up(procs)
    for proc, how in zip(procs, ("exec", "bare", "fork", "daemon"), strict=False):
        made.send(proc, "grandchild", how=how)
        made.hear("done", proc)
    facts = {
        "agent": made.agent_pid,
        "zygote": made.hear("ready")["zygote"],
        "ranks": list(made.pids().values()),
        "run_dir": str(made.run_dir.path),
    }
    print(json.dumps(facts), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
