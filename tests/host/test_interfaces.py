"""By which interface other hosts reach this one."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from monarch_nb.host.interfaces import interface_of


@pytest.fixture(autouse=True)
def two_interfaces(monkeypatch):
    def addresses():
        return {
            "lo": [SimpleNamespace(address="127.0.0.1"), SimpleNamespace(address="::1")],
            "eth3": [SimpleNamespace(address="10.7.0.5"), SimpleNamespace(address="fe80::1%eth3")],
        }

    monkeypatch.setattr(psutil, "net_if_addrs", addresses)


@pytest.mark.parametrize(
    "addresses, interface",
    [
        (["tcp://127.0.0.1:5"], "lo"),
        (["tcp://127.0.1.1:5"], "lo"),
        (["tcp://[::1]:5"], "lo"),
        (["tcp://10.7.0.5:5"], "eth3"),
        (["tcp://*:5", "tcp://10.7.0.5:5"], "eth3"),
        (["tcp://10.9.9.9:5"], None),
        (["tcp://no.such.host.:5"], None),
        (["ipc:///tmp/host"], "lo"),
    ],
)
def test_the_one_that_has_the_address(addresses, interface):
    assert interface_of(*addresses) == interface


def test_names_are_looked_up(monkeypatch):
    found = [(0, 0, 0, "", ("10.7.0.5", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert interface_of("tcp://node5:5") == "eth3"
