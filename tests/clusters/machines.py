"""Machines for tests: all that makes a host look like one of its own, on this one machine.

Each has a hostname, an /etc/hosts, network interfaces, loopback, process ids, /sys, /run, /dev/shm
and a TMPDIR (memory) of its own; everything else, such as the code and the folder of a test, is
shared, as on the shared file system of a cluster. This process stays where it is, joined to the
network `lan` of the machines: they reach it and it reaches them.

Options of `Machines.__call__`:

- `networks`: the interfaces eth0, eth1 ... in their order. The name of a machine is known to the
  others by the address of its first. ("storage", "lan") is a machine whose name leads nowhere.
- `debian`: its own name means 127.0.1.1 to itself, as Debian's installer writes it.
- `home`: a HOME of its own, empty and gone with the machine.

`python -m tests.clusters.machines 4` starts four, prints how to enter them, and waits for ctrl-C.
It needs root.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.clusters.namespaces import Namespaces, children_of, run
from tests.clusters.networks import LAN, Fabric, port_name
from tests.support import describe_process, eventually, is_running

KINDS = ["--net", "--uts", "--ipc", "--mount", "--pid"]
NODE = "node"  # node1, node2 ...

# words: hostname, TMPDIR, file for /etc/hosts. /sys is mounted anew, as it shows the interfaces of
# the process that mounts it; slurmd wants the cgroups in it.
_SET_UP = """
hostname "$1"
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs "$2"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/cgroup /run/sshd "$2/home"
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
mount --bind "$3" /etc/hosts
ip link set lo up
"""


class Process(subprocess.Popen):
    """A process in a machine; signals go to it, not to the `nsenter` that waits for it."""

    def send_signal(self, sig: int) -> None:
        inside = eventually(lambda: self.poll() is not None or children_of(self.pid))
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(inside[0], sig)


class Machine:
    """One machine. `address` is where this process reaches it, or the first where it does not."""

    def __init__(
        self, fabric: Fabric, folder: Path, number: int, networks: Sequence[str], home: bool
    ) -> None:
        self.name = f"{NODE}{number}"
        self.hosts_file = folder / f"hosts-{number}"
        self.tmpdir = folder / "tmp"  # the same path in each, and another folder in each
        self.own_env = {"TMPDIR": str(self.tmpdir)}
        """What it adds to the environment of a program."""
        if home:
            self.own_env["HOME"] = f"{self.tmpdir}/home"
        self._fabric = fabric
        self._started: list[Process] = []
        self.hosts_file.touch()
        words = [self.name, str(self.tmpdir), str(self.hosts_file)]
        self._space = Namespaces(KINDS, _SET_UP, words)
        names = [f"eth{index}" for index in range(len(networks))]
        self._ports = [port_name(number, name) for name in names]
        try:
            self.addresses = {
                network: fabric.plug(self._space, number, network, name)
                for network, name in zip(networks, names, strict=True)
            }
        except BaseException:
            self._space.close()
            raise
        self.address = self.addresses.get(LAN) or self.addresses[networks[0]]

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None, **options) -> str:
        """Run a command to its end and return what it prints.

        Raises `RuntimeError`, with its stderr, if it fails. `options`: `text` for its stdin,
        `timeout_s`, and those of `subprocess.run`.
        """
        return run([*self._enter(), *command], env=self.env(env), **options)

    def popen(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **options
    ) -> Process:
        """Start a command; it ends with the machine at the latest. `options` are of `Popen`."""
        process = Process([*self._enter(), *command], env=self.env(env), **options)
        self._started.append(process)
        return process

    def popen_outside(self, command: Sequence[str], **options) -> Process:
        """Start a command that sees the files and the network of this process, and yet ends with
        the machine: so it ends with a killed session too."""
        process = Process([*self._space.enter(["--pid"]), *command], **options)
        self._started.append(process)
        return process

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of what runs here."""
        return {**os.environ, **self.own_env, **(more or {})}

    def processes(self) -> set[int]:
        """Return all that runs here, by the process ids that this process sees."""
        return {pid for pid in self._space.processes() if is_running(pid)}

    def assert_idle(self, but: set[int] = frozenset(), within_s: float = 10.0) -> None:
        """Wait until nothing runs here, but those; name what is left otherwise."""
        __tracebackhide__ = True

        def left() -> str:
            lines = sorted(describe_process(pid) for pid in self.processes() - but)
            return "\n  ".join([f"{self.name} is idle; it has", *lines])

        eventually(lambda: not self.processes() - but, within_s, left)

    def cut(self) -> None:
        """Pull its cables: what is sent to it or by it is lost, and nobody is told."""
        for port in self._ports:
            self._fabric.switch(port, "down")

    def join(self) -> None:
        """Put its cables back."""
        for port in self._ports:
            self._fabric.switch(port, "up")

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """`with machine.cut_off():` its cables are pulled."""
        self.cut()
        try:
            yield
        finally:
            self.join()

    def lose_power(self) -> None:
        """End it without a word to anybody: no connection is closed."""
        self.cut()
        self.close()

    def close(self) -> None:
        """End everything in it. Harmless when repeated."""
        self._space.close()
        for each in self._started:
            each.wait(10)
            for pipe in (each.stdin, each.stdout, each.stderr):
                if pipe:
                    pipe.close()

    def _enter(self) -> list[str]:
        return [*self._space.enter(), f"--wdns={os.getcwd()}"]

    def __repr__(self) -> str:
        return f"{self.name} ({self.address}): nsenter --target {self._space.pid} --all"


class Machines:
    """`machines(2)`: two more, joined to all others. Also a context manager, which ends them.

    `address` is that of this process, as the machines reach it; `folder` is one that all share.
    """

    def __init__(self) -> None:
        self._fabric = Fabric()
        self.address = self._fabric.address
        self.folder = Path(tempfile.mkdtemp(prefix="rig-"))
        (self.folder / "tmp").mkdir()
        self._made: list[Machine] = []
        self._debian: set[str] = set()

    def __call__(
        self,
        count: int = 1,
        *,
        networks: Sequence[str] = (LAN,),
        debian: bool = False,
        home: bool = False,
    ) -> list[Machine]:
        new = [self._start(networks, home) for _ in range(count)]
        self._debian |= {each.name for each in new if debian}
        self._write_hosts()
        return new

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for each in self._made:
            each.close()
        self._fabric.close()
        shutil.rmtree(self.folder)

    def _start(self, networks: Sequence[str], home: bool) -> Machine:
        self._made.append(Machine(self._fabric, self.folder, len(self._made) + 1, networks, home))
        return self._made[-1]

    def _write_hosts(self) -> None:
        """What each knows of all; the files are mounted, so they are written in place."""
        first = {each.name: next(iter(each.addresses.values())) for each in self._made}
        for each in self._made:
            own = {each.name: "127.0.1.1"} if each.name in self._debian else {}
            names = {"localhost": "127.0.0.1", **first, **own}
            lines = (f"{address} {name}\n" for name, address in names.items())
            each.hosts_file.write_text("".join(lines))


def until_interrupted() -> None:
    """Wait for ctrl-C."""
    print("ctrl-C ends it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def main(count: int) -> None:
    """Start machines, say how to enter them, and keep them until ctrl-C."""
    with Machines() as machines:
        print(*machines(count), f"this process: {machines.address}", sep="\n")
        until_interrupted()


if __name__ == "__main__":
    main(int(sys.argv[1]))
