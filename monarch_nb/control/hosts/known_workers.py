"""`monarch-nb hosts`, as it is typed in a terminal: which workers are known by a key of their own.

A public key is read from the standard input, so that it can come by ssh, which knows the host.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from monarch_nb.control.hosts.addresses import WorkerAddress
from monarch_nb.net import keys, known_hosts, wire
from monarch_nb.net.known_hosts import fingerprint


def add_commands(commands: Any) -> None:
    """Add the command to those of `monarch-nb`."""
    hosts = commands.add_parser("hosts", help="the workers that are known by a key of their own")
    hosts.set_defaults(run=_list)
    verbs = hosts.add_subparsers(metavar="VERB")
    key = verbs.add_parser("key", help="write the public key of this user on this host")
    key.set_defaults(run=_key)
    pin = verbs.add_parser("pin", help="know a worker by the key that comes by standard input")
    pin.set_defaults(run=_pin)
    forget = verbs.add_parser("forget", help="know the key of a worker no more")
    forget.set_defaults(run=_forget)
    for each in (pin, forget):
        each.add_argument("address", metavar="ADDRESS", help="as tcp://node1:26600")


def _list(_: argparse.Namespace) -> int:
    known = known_hosts.known_hosts()
    if not known:
        _say("no worker has a key of its own here. Type: monarch-nb hosts pin ADDRESS")
    for host in known.values():
        _say(f"{host.address}  {fingerprint(host.key)}  since {host.since}")
    return 0


def _key(_: argparse.Namespace) -> int:
    _say(keys.identity().public.decode())
    return 0


def _pin(chosen: argparse.Namespace) -> int:
    address = WorkerAddress.from_text(chosen.address).dial
    wire.check_address(address)
    if sys.stdin.isatty():
        _say("Paste what `monarch-nb hosts key` writes on the worker's host:")
    host = known_hosts.pin(address, sys.stdin.readline().strip())
    _say(f"{host.address} is known by {fingerprint(host.key)} since {host.since}")
    return 0


def _forget(chosen: argparse.Namespace) -> int:
    host = known_hosts.forget(chosen.address)
    _say(
        f"{host.address} was known by {fingerprint(host.key)} since {host.since} and is forgotten: "
        "it must have your own key now, or be pinned again"
    )
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
