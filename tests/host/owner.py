"""A process that owns a host, for tests that kill the owner. Prints what it has started."""

import argparse
import json
import threading

from tests.host.support import Host

KEY = "ab" * 32


def main(count: int, keep_s: float | None) -> None:
    made = Host()
    made.hear("ready", within_s=60)
    procs = made.spawn(count)
    made.up(procs)
    for proc, how in zip(procs, ("exec", "bare", "fork", "daemon"), strict=False):
        made.send(proc, "grandchild", how=how)
        made.hear("done", proc)
    if keep_s is not None:
        assert made.ask("keep", procs=procs, for_s=keep_s, key=KEY) == {"ok": True}
    facts = {
        "agent": made.agent_pid,
        "zygote": made.hear("ready")["zygote"],
        "ranks": list(made.pids().values()),
        "run_dir": str(made.run_dir.path),
    }
    print(json.dumps(facts), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--keep", type=float)
    chosen = parser.parse_args()
    main(chosen.count, chosen.keep)
