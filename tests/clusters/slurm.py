"""A Slurm cluster: a controller and nodes in machines, commands on the test's side.

munge vouches for who sends what; each machine and the test's side have a daemon of it, which share
one key. slurm.conf is the same for all. The daemons end with their machines. Partitions:

- `debug`, the default: all nodes, without a limit of time
- `short`: all nodes, one minute at most, the least that Slurm can measure
- `single`: the first node only

A node says that it has 8 processors and 8 GPUs; the GPUs are terminals in truth, as Slurm believes
in any GPU that has a file: `CUDA_VISIBLE_DEVICES` is set and there is no device. Jobs get the
TMPDIR of the machine, as from a site's prologue.

`python -m tests.clusters.slurm 4` starts one, prints how to use it, and waits for ctrl-C.
"""

import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Self

from tests.clusters.machines import Machine, Machines, until_interrupted
from tests.clusters.namespaces import run
from tests.support import eventually

GPUS = 8  # of each node
COMMANDS = ("slurmctld", "slurmd", "srun", "munged")

_CONFIG = """
    ClusterName=rig
    SlurmctldHost={head.name}({head.address})
    AuthType=auth/munge
    AuthInfo=socket={tmp}/munge.sock
    SlurmUser=root
    SlurmdUser=root
    StateSaveLocation={tmp}/state
    SlurmdSpoolDir={tmp}/spool
    SlurmctldPidFile={tmp}/slurmctld.pid
    SlurmdPidFile={tmp}/slurmd.pid
    SlurmctldLogFile={folder}/slurmctld.log
    SlurmdLogFile={folder}/%n.log
    SlurmdParameters=config_overrides
    TaskProlog={folder}/prologue
    MailProg=/bin/true
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    MpiDefault=none
    SelectType=select/cons_tres
    SelectTypeParameters=CR_Core
    SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
    ReturnToService=2
    KillWait=5
    GresTypes=gpu
    PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE
    PartitionName=short Nodes=ALL MaxTime=1
    PartitionName=single Nodes={nodes[0].name}
"""
_NODE = "NodeName={0.name} NodeAddr={0.address} CPUs=8 RealMemory=16000 Gres=gpu:{1}\n"
_GPUS = f"AutoDetect=off\nName=gpu File=/dev/tty[0-{GPUS - 1}]\n"


class Cluster:
    """`nodes` compute and `head` controls. Also a context manager, which ends all of it."""

    def __init__(self, count: int) -> None:
        self._machines = Machines()
        self.nodes = self._machines(count)
        [self.head] = self._machines()
        self.folder = self._machines.folder
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        """What every program needs that uses the commands of Slurm."""
        self._daemons: set[int] = set()

    def __enter__(self) -> Self:
        try:
            self._write()
            self._start()
            idle = f"idle {len(self.nodes)}"
            eventually(lambda: idle in self.run("sinfo", "-h", "-p", "debug", "-o", "%T %D"), 20)
        except BaseException:
            self.__exit__()
            raise
        self._daemons = self._processes()
        return self

    def __exit__(self, *_error: object) -> None:
        self._machines.__exit__()

    def run(self, *command: str, text: str | None = None) -> str:
        """Run a command of Slurm on the test's side. Raises `RuntimeError` if it fails."""
        return run(command, text=text, env={**os.environ, **self.env})

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a script; return the id of the job. What it prints is in `folder`."""
        command = ["sbatch", "--parsable", f"--output={self.folder}/%j.out", *options]
        return self.run(*command, text=script).strip()

    def state(self, job: str) -> str:
        """Return the state of a job: PENDING, RUNNING, CANCELLED ..."""
        return self.run("squeue", "-h", "--states=all", "-j", job, "-o", "%T").strip()

    def reason(self, job: str) -> str:
        """Return why a job waits, in Slurm's words, or "None"."""
        return self.run("squeue", "-h", "-j", job, "-o", "%r").strip()

    def drain(self, node: Machine) -> None:
        """Let no further job start on a node."""
        self.run("scontrol", "update", f"nodename={node.name}", "state=drain", "reason=test")

    def resume(self, node: Machine) -> None:
        """Undo `drain`."""
        self.run("scontrol", "update", f"nodename={node.name}", "state=resume")

    def assert_idle(self, within_s: float = 15.0) -> None:
        """Wait until no job is left, nor any process of one; name what is left otherwise."""
        __tracebackhide__ = True
        eventually(lambda: not self.run("squeue", "-h"), within_s, lambda: self.run("squeue"))
        for each in self.nodes:
            each.assert_idle(but=self._daemons, within_s=within_s)

    def _write(self) -> None:
        facts = {"head": self.head, "nodes": self.nodes, "folder": self.folder}
        config = textwrap.dedent(_CONFIG).format(tmp=self.head.tmpdir, **facts)
        nodes = "".join(_NODE.format(each, GPUS) for each in self.nodes)
        # nodes come before the partitions that name them
        at = config.index("PartitionName")
        (self.folder / "slurm.conf").write_text(config[:at] + nodes + config[at:])
        (self.folder / "gres.conf").write_text(_GPUS)
        _write(
            self.folder / "prologue", f"#!/bin/sh\necho export TMPDIR={self.head.tmpdir}\n", 0o755
        )
        _write(self.folder / "munge.key", os.urandom(32).hex(), 0o400)

    def _start(self) -> None:
        munged = _munged(self.folder / "munge.key", self.head.tmpdir)
        for each in (self.head, *self.nodes):
            each.popen(munged, stderr=DEVNULL)
        self.head.popen_outside(munged, stderr=DEVNULL)
        self.head.run(["mkdir", f"{self.head.tmpdir}/state"])
        self.head.popen(["slurmctld", "-D"], env=self.env, stderr=DEVNULL)
        for each in self.nodes:
            each.popen(["slurmd", "-D", "-N", each.name], env=self.env, stderr=DEVNULL)

    def _processes(self) -> set[int]:
        return set().union(*(each.processes() for each in self.nodes))


def _munged(key: Path, folder: Path) -> Sequence[str]:
    """`--force`: a folder below that of a test may be closed to others."""
    places = {"key-file": key} | {
        f"{name}-file": folder / f"munge.{name}" for name in ("log", "pid", "seed")
    }
    options = [f"--{name}={path}" for name, path in places.items()]
    return ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *options]


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)


def main(count: int) -> None:
    """Start a cluster, say how to use it, and keep it until ctrl-C."""
    with Cluster(count) as cluster:
        print(*cluster.nodes, sep="\n")
        print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}; then sinfo, srun, sbatch ...")
        until_interrupted()


if __name__ == "__main__":
    main(int(sys.argv[1]))
