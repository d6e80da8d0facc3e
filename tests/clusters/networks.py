"""The networks between machines: bridges in a namespace of their own, which this process joins.

A machine has a port at each network that it is on. This process has an address on `lan` and on no
other. Networks of other sessions on this machine are never reached: the third number of `lan`,
198.18.N.0/24, is taken by making the interface `mnbrigN`, which the kernel allows only once.
(198.18.0.0/15 is what RFC 2544 sets aside for tests of networks.)
"""

import os

from tests.clusters.namespaces import Namespaces, run

LAN = "lan"
_TEST = "test"  # the port of this process
_OWN_NUMBER = 254
_SUBNETS = 256


class Fabric:
    """Bridges by name; `plug` makes a port. Ends with this process, or with `close`."""

    def __init__(self) -> None:
        self._space = Namespaces(["--net"])
        self._subnets: dict[str, str] = {}
        self._interface = ""  # of this process
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Return the address of this process on `lan`."""
        return f"{self._subnets[LAN]}.{_OWN_NUMBER}"

    def plug(self, inside: Namespaces, number: int, network: str, interface: str) -> str:
        """Give a machine an interface on a network, and return its address there."""
        bridge = self._bridge(network)
        port = port_name(number, interface)
        ends = f"link add {port} type veth peer name {interface} netns {inside.pid}"
        self._ip(ends, f"link set {port} master {bridge} up")
        address = f"{self._subnets[network]}.{number}"
        _batch(inside, f"addr add {address}/24 dev {interface}", f"link set {interface} up")
        return address

    def switch(self, port: str, state: str) -> None:
        """Set the link of a port `up` or `down`."""
        self._ip(f"link set {port} {state}")

    def close(self) -> None:
        """End every network. The interface here would end with them, but a moment later."""
        if self._interface:
            run(["ip", "link", "del", self._interface])
        self._space.close()

    def _join(self) -> None:
        self._interface, self._subnets[LAN] = self._take_subnet()
        self._ip(f"link add {LAN} type bridge", f"link set {LAN} up")
        self._ip(f"link set {_TEST} master {LAN} up")
        run(["ip", "addr", "add", f"{self.address}/24", "dev", self._interface])
        run(["ip", "link", "set", self._interface, "up"])

    def _take_subnet(self) -> tuple[str, str]:
        """Take one that no other session has; the interface is the lock."""
        for step in range(_SUBNETS):
            number = (os.getpid() + step) % _SUBNETS
            if self._make_interface(f"mnbrig{number}"):
                return f"mnbrig{number}", f"198.18.{number}"
        raise RuntimeError("every interface mnbrig0 to mnbrig255 is taken")

    def _make_interface(self, name: str) -> bool:
        """Whether it was free."""
        ends = f"link add {name} type veth peer name {_TEST} netns {self._space.pid}"
        try:
            run(["ip", *ends.split()])
        except RuntimeError as error:
            if "File exists" in str(error):
                return False
            raise
        return True

    def _bridge(self, network: str) -> str:
        if network not in self._subnets:
            self._subnets[network] = f"198.19.{len(self._subnets)}"
            self._ip(f"link add {network} type bridge", f"link set {network} up")
        return network

    def _ip(self, *lines: str) -> None:
        _batch(self._space, *lines)


def port_name(number: int, interface: str) -> str:
    """Return the name of the port at which a machine's interface is plugged in."""
    return f"{interface}-{number}"


def _batch(inside: Namespaces, *lines: str) -> None:
    run([*inside.enter(["--net"]), "ip", "-batch", "-"], text="\n".join(lines))
