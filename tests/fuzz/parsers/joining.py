"""What lets hosts join: greetings, secrets, tickets, keys, addresses."""

from monarch_nb.control.hosts.addresses import WorkerAddress
from monarch_nb.errors import AuthError, ProtocolError
from monarch_nb.host.launch import AgentBoot
from monarch_nb.meshes.states import StoreName
from monarch_nb.net import keys, known_hosts, wire
from monarch_nb.net.hosts import handshake
from monarch_nb.net.hosts.joining import Ticket
from tests.fuzz.places import home, private_file


def hello(data: bytes) -> bool:
    """Any greeting, of the length that is read, is refused with ProtocolError, or is written as it
    came."""
    data = data[: handshake.GREETING_BYTES].ljust(handshake.GREETING_BYTES, b"\0")
    try:
        found = handshake.unpack_greeting(data)
    except ProtocolError:
        return False
    assert handshake.may_greet(data)
    assert handshake.pack_greeting(*found) == data
    return True


def received(data: bytes) -> bool:
    """Any first record of a connection is refused with ProtocolError, or is written as it came."""
    try:
        found = handshake.unpack_received(data)
    except ProtocolError:
        return False
    assert handshake.pack_received(found) == data
    return True


def secret(data: bytes) -> bool:
    """Any text is refused with ProtocolError, or is a secret that is written as it is read."""
    try:
        found = handshake.Secret.from_text(data.decode("utf-8", "surrogateescape"))
    except ProtocolError:
        return False
    assert handshake.Secret.from_text(found.to_text()) == found
    return True


def ticket(data: bytes) -> bool:
    """Any line is refused with AuthError that shows none of it, or is a ticket with keys and
    addresses that is written as it is read."""
    try:
        found = Ticket.from_line(data)
    except AuthError as error:
        return _refused(str(error) == "this is no ticket of a monarch_nb job")
    assert isinstance(found.keys.public, bytes)
    assert all(isinstance(each, str) for each in (*found.addresses, *found.env.values()))
    assert Ticket.from_line(found.to_line()) == found
    return True


def boot(data: bytes) -> bool:
    """Any line is refused with ValueError or TypeError, or is a boot record that is written as it
    is read."""
    try:
        found = AgentBoot.from_line(data)
    except (ValueError, TypeError):
        return False
    written = found.to_line()
    assert AgentBoot.from_line(written).to_line() == written
    return True


def known_host_list(data: bytes) -> bool:
    """Any file of known hosts is refused with AuthError, or has keys of 40 characters."""
    with home() as folder:
        private_file(folder / known_hosts.KNOWN, data)
        try:
            found = known_hosts.known_hosts(folder)
        except AuthError:
            return False
    assert all(known_hosts.fingerprint(each.key) for each in found.values())
    return bool(found)


def allow_list(data: bytes) -> bool:
    """Any list of keys that are let in is refused with AuthError, or has keys of 40 characters
    and the user's own."""
    with home() as folder:
        private_file(folder / keys.IDENTITY, b'{"public": "%b", "secret": "-"}' % (b"o" * 40))
        private_file(folder / keys.AUTHORIZED, data)
        try:
            found = keys.allowed(folder)
        except AuthError:
            return False
    assert b"o" * 40 in found
    assert all(len(each.decode()) == keys.KEY_CHARACTERS for each in found)
    return len(found) > 1


def identity(data: bytes) -> bool:
    """Any file of a key pair is refused with AuthError, or is a pair of keys."""
    with home() as folder:
        private_file(folder / keys.IDENTITY, data)
        try:
            found = keys.identity(folder)
        except AuthError:
            return False
    assert found.public.decode()
    return True


def address(data: bytes) -> bool:
    """Any text is refused with ValueError, or is an address that can be asked whether it listens
    everywhere."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        found = WorkerAddress.from_text(text)
        wire.check_address(found.dial)
    except ValueError:
        return False
    again = found.dial if found.bind is None else f"{found.dial}@{found.bind}"
    assert WorkerAddress.from_text(again) == found
    return True


def store_name(data: bytes) -> bool:
    """Any text is refused with ValueError, or names a place where process groups meet."""
    try:
        found = StoreName.from_text(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        return False
    assert StoreName.from_text(f"{found.mesh:x}-{found.generation}") == found
    return True


def _refused(is_right: bool) -> bool:
    assert is_right
    return False
