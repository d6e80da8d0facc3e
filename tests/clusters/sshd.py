"""ssh into machines: a server in each, keys that are thrown away, a config file for the client.

`ssh -F CONFIG node1 COMMAND` works. A machine that is not on `lan` is reached through one that is
and shares a network with it (`ProxyJump`). Connections are shared and kept for a while
(`ControlMaster`), as many users have it; `close` ends them. Host keys are checked.

A session gets the TMPDIR of its machine, its HOME if it has one, and the code of this checkout.

`python -m tests.clusters.sshd 2` starts two and one behind them, and waits for ctrl-C.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from monarch_nb.testing.processes import SESSION
from tests.clusters.machines import Machine, Machines, until_interrupted
from tests.clusters.namespaces import run
from tests.clusters.networks import LAN
from tests.conftest import PRELOAD
from tests.source import ROOT
from tests.support import eventually

COMMANDS = ("ssh", "sshd", "ssh-keygen")

_SERVER = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
SetEnv {env}
"""
_CLIENT = """\
Host {name}
  HostName {address}
  HostKeyAlias {name}
  ProxyJump {jump}

"""
_ALL = """\
Host *
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
  ControlMaster auto
  ControlPath {folder}/%n.sock
  ControlPersist 60
"""


class SshServers:
    """An sshd in each of these machines; `config` is the client's. Also a context manager."""

    def __init__(self, folder: Path, machines: Sequence[Machine]) -> None:
        self.config = folder / "ssh_config"
        self._folder = folder
        self._machines = machines

    def __enter__(self) -> Self:
        for name in ("host_key", "user_key"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self._folder}/{name}"])
        self._write_config()
        for each in self._machines:
            self._start(each)
        return self

    def __exit__(self, *_error: object) -> None:
        """End the connections; some have ended by themselves, with their machine."""
        for each in self._machines:
            end = [*self.command(each), "-O", "exit"]
            subprocess.run(end, check=False, capture_output=True, timeout=10)

    def command(self, machine: Machine, *words: str) -> list[str]:
        """Return the command line that runs `words` on a machine."""
        return ["ssh", "-F", str(self.config), machine.name, *words]

    def _start(self, machine: Machine) -> None:
        config, log = (self._folder / f"{machine.name}.{kind}" for kind in ("sshd", "log"))
        env = machine.own_env | dict([SESSION.split("=")]) | {"PYTHONPATH": str(ROOT)}
        env[PRELOAD] = os.environ[PRELOAD]  # a login has an environment of its own
        words = " ".join(f"{name}={value}" for name, value in env.items())
        listen = "".join(f"ListenAddress {each}\n" for each in machine.addresses.values())
        config.write_text(listen + _SERVER.format(folder=self._folder, env=words))
        machine.popen(["/usr/sbin/sshd", "-D", "-f", str(config), "-E", str(log)])
        eventually(lambda: log.exists() and "Server listening" in log.read_text(), 10)

    def _write_config(self) -> None:
        places = [(each, *self._way_to(each)) for each in self._machines]
        hosts = (_CLIENT.format(name=m.name, address=to, jump=via) for m, to, via in places)
        self.config.write_text("".join(hosts) + _ALL.format(folder=self._folder))
        key = (self._folder / "host_key.pub").read_text()
        known = (f"{each.name} {key}" for each in self._machines)
        (self._folder / "known_hosts").write_text("".join(known))

    def _way_to(self, machine: Machine) -> tuple[str, str]:
        """The address, and the name of the machine to go through, or `none`."""
        if LAN in machine.addresses:
            return machine.address, "none"
        for other in self._machines:
            shared = machine.addresses.keys() & other.addresses.keys()
            if LAN in other.addresses and shared:
                return machine.addresses[shared.pop()], other.name
        raise ValueError(f"no way to {machine.name}")


def main(count: int) -> None:
    """Start machines with sshd and one behind them, say how to enter, keep them until ctrl-C."""
    with Machines() as machines:
        front, [behind] = machines(count, networks=(LAN, "back")), machines(networks=("back",))
        with SshServers(machines.folder, [*front, behind]) as servers:
            for each in (*front, behind):
                print(subprocess.list2cmdline(servers.command(each)))
            until_interrupted()


if __name__ == "__main__":
    main(int(sys.argv[1]))
