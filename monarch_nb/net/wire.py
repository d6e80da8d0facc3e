"""Every socket of the project is made here: the only `bind` and the only `connect`.

On one host: `ipc://` in a directory of mode 0700. Between hosts: one TCP port, behind which stand
CURVE with an allow-list for who wants to join, and encrypted sessions for who has joined
(`hosts/`). There is no option for plain TCP and no way to listen on every interface by accident.

Data links have no heartbeats: a unix socket does not partition, and a heartbeat that gives up on a
stopped peer would drop what is in the pipe. Whether a peer is alive is asked on a link of its own
(`pulse`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from monarch_nb.core.wire.frames import GATEWAY, HOST_SHIFT, SERVICE_BIT
from monarch_nb.errors import LaunchError
from monarch_nb.net.keys import KeyPair
from monarch_nb.net.private import check_private

_RECONNECT_MS: Final = 5  # a peer that is being forked binds within milliseconds
_LATE_RECONNECT_MS: Final = 500  # a host that is being started, or is flooded
_MAX_SOCKETS: Final = 60_000
_LINGER_MS: Final = 2_000
_HANDSHAKE_MS: Final = 3_000  # then whoever only holds a connection open is cut off
LONGEST_FRAME: Final = 1 << 16  # of who wants to join, also before it is known who that is
_LAST_PORT: Final = 65_535
_SIOCGIFADDR: Final = 0x8915  # of Linux
_IFNAMSIZ: Final = 15
IPC_PATH_LIMIT: Final = 107
_INHERITED: Final = re.compile(r"tcp://[^@]*:fd(\d+)")
STREAM_SUFFIX: Final = ".s"
NO_FILE_LEFT: Final = (errno.EMFILE, errno.ENFILE)
_DEBUG_SERVER: Final = "visitors"  # the file
_INSPECTION_SERVER: Final = "questions"
_JOB_SERVER: Final = "job"
_JOINS: Final = "joins"
_BACKLOG: Final = 1024
ZAP_DOMAIN: Final = "monarch_nb"
Context = zmq.Context[zmq.Socket[bytes]]


def new_context(io_threads: int = 1) -> Context:
    """Make a ZeroMQ context. Raises `RuntimeError` for a libzmq with known holes."""
    if zmq.zmq_version_info() < (4, 3, 5):
        raise RuntimeError(f"libzmq {zmq.zmq_version()} is too old: 4.3.5 or newer is needed")
    context: Context = zmq.Context(io_threads)
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    return context


def end_context(context: Context) -> None:
    """Close what sockets are left and end the context, whatever signal comes meanwhile.

    One with a handler would end libzmq's wait for its own threads, and SIGCHLD has one once a
    `DataLoader` of PyTorch has had workers. pyzmq then takes the context for ended, and they and
    their descriptors stay for as long as the process lives.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        context.destroy(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def inbox_path(run_dir: Path, process: int) -> str:
    """Return where the process of this id listens, as an `ipc://` address."""
    path = f"{run_dir}/{process:016x}"
    if len(path.encode()) > IPC_PATH_LIMIT:
        raise ValueError(f"{path} is too long for a unix socket ({IPC_PATH_LIMIT} bytes)")
    return f"ipc://{path}"


def bind_inbox(context: Context, run_dir: Path, process: int) -> zmq.Socket[bytes]:
    """Bind the socket on which `process` receives everything that is sent to it on this host."""
    check_private(run_dir)
    socket = _data_socket(context, zmq.PULL)
    socket.bind(inbox_path(run_dir, process))
    return socket


def connect_outbox(context: Context, run_dir: Path, process: int) -> zmq.Socket[bytes]:
    """Connect to `process`; it may not listen yet, messages wait until it does."""
    check_run_dir(run_dir)
    socket = _data_socket(context, zmq.PUSH)
    socket.connect(inbox_path(run_dir, process))
    return socket


def connect_pulse(
    context: Context, run_dir: Path, process: int, interval_s: float, timeout_s: float
) -> zmq.Socket[bytes]:
    """Make a link that carries heartbeats only, answered by libzmq's own thread in the peer.

    A stopped or frozen peer does not answer, and the link breaks after `timeout_s` more.
    """
    socket = _data_socket(context, zmq.PUSH)
    socket.heartbeat_ivl = int(interval_s * 1000)
    socket.heartbeat_timeout = int(timeout_s * 1000)
    socket.handshake_ivl = int(timeout_s * 1000)
    # a peer that is being forked is found within milliseconds of its bind: one that is stopped
    # before its first pulse would pass for one that still boots
    socket.reconnect_ivl_max = int(interval_s * 1000)
    socket.linger = 0
    socket.connect(inbox_path(run_dir, process))
    return socket


def check_run_dir(run_dir: Path) -> None:
    """Refuse to look for a process in a folder that is not ours alone: somebody else may listen
    there. One that is gone has nobody in it. Raises `AuthError`."""
    with contextlib.suppress(FileNotFoundError):
        check_private(run_dir)


def stream_path(run_dir: Path, process: int) -> Path:
    return run_dir / f"{process:016x}{STREAM_SUFFIX}"


def socket_paths(run_dir: Path, process: int) -> tuple[Path, Path]:
    return run_dir / f"{process:016x}", stream_path(run_dir, process)


def bind_stream(run_dir: Path, process: int) -> socket.socket:
    listener = _listen(run_dir, stream_path(run_dir, process))
    listener.setblocking(False)
    return listener


def connect_stream(run_dir: Path, process: int) -> socket.socket | None:
    """Connect to a process of this host, or None while it does not accept, or no file is left."""
    try:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno in NO_FILE_LEFT:
            return None
        raise
    stream.setblocking(False)
    try:
        stream.connect(str(stream_path(run_dir, process)))
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        stream.close()
        return None
    return stream


def bind_debug_server(run_dir: Path) -> socket.socket:
    """Accept debuggers: programs of the same user."""
    return _listen(run_dir, run_dir / _DEBUG_SERVER)


def bind_inspection_server(run_dir: Path) -> socket.socket:
    """Accept `monarch-nb status` and its like: programs of the same user, which change nothing."""
    return _listen(run_dir, run_dir / _INSPECTION_SERVER)


def connect_inspection_server(run_dir: Path, timeout_s: float) -> socket.socket:
    """Connect to the owner of a run dir, with a limit for every wait. Raises `OSError`,
    `AuthError`."""
    return _connect(run_dir, run_dir / _INSPECTION_SERVER, timeout_s)


def bind_job_server(run_dir: Path) -> socket.socket:
    """Accept `monarch-nb`: programs of the same user that ask for hosts of a job."""
    return _listen(run_dir, run_dir / _JOB_SERVER)


def connect_job_server(run_dir: Path) -> socket.socket:
    """Connect to who holds a job. Raises `OSError`, `AuthError`."""
    return _connect(run_dir, run_dir / _JOB_SERVER)


def _listen(run_dir: Path, path: Path) -> socket.socket:
    check_private(run_dir)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)  # of an owner that has gone
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    return listener


def has_debug_server(run_dir: Path) -> bool:
    return (run_dir / _DEBUG_SERVER).is_socket()


def connect_debug_server(run_dir: Path) -> socket.socket:
    """Connect to the owner of a run dir. Raises `OSError`, `AuthError`."""
    return _connect(run_dir, run_dir / _DEBUG_SERVER)


def _connect(run_dir: Path, path: Path, timeout_s: float | None = None) -> socket.socket:
    check_private(run_dir)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(timeout_s)
    try:
        stream.connect(str(path))
    except OSError:
        stream.close()
        raise
    return stream


def agent_id(host: int) -> int:
    """Return the id of the agent of a host that has joined, or was attached."""
    return host << HOST_SHIFT | SERVICE_BIT | 2


def gateway_id(host: int) -> int:
    """Return the id under which a host's gateway receives what is for other hosts."""
    return host << HOST_SHIFT | GATEWAY


def bind_joins(context: Context, run_dir: Path, keys: KeyPair) -> zmq.Socket[bytes]:
    """Bind where hosts and clients that want to join speak CURVE; a `Listener` passes them on.

    The caller has an allow-list running on the context's ZAP endpoint.
    """
    check_private(run_dir)
    socket = _curve_socket(context, zmq.ROUTER, keys)
    socket.zap_domain = ZAP_DOMAIN.encode()
    socket.zap_enforce_domain = True  # without who looks at the list, nobody is let in
    socket.curve_server = True
    socket.backlog = _BACKLOG
    socket.bind(joins_address(run_dir))
    return socket


def connect_joins(run_dir: Path) -> socket.socket:
    """Connect to that, to pass on what somebody says who has come to this host's port."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect(joins_address(run_dir).removeprefix("ipc://"))
    stream.setblocking(False)
    return stream


def joins_address(run_dir: Path) -> str:
    return f"ipc://{run_dir}/{_JOINS}"


def connect_to_join(
    context: Context, address: str, keys: KeyPair, server: bytes, events: int
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Connect to a host that one wants to join, whose public key must be `server`. The second
    socket tells these events of the first, from the begin on."""
    check_address(address)
    socket = _curve_socket(context, zmq.DEALER, keys)
    socket.curve_serverkey = server
    monitor = socket.get_monitor_socket(events)
    socket.connect(address)
    return socket, monitor


def connect_to_any(
    context: Context, addresses: Sequence[str], keys: KeyPair, server: bytes
) -> zmq.Socket[bytes]:
    """Do so at all addresses at once: what is sent goes to the first that lets us in."""
    socket = _curve_socket(context, zmq.DEALER, keys)
    socket.curve_serverkey = server
    socket.immediate = True
    for address in addresses:
        check_address(address)
        socket.connect(address)
    return socket


def listen_for_hosts(address: str | None, *, anywhere: bool = False) -> socket.socket:
    """Listen for other hosts at an address that the user gave: only a `Listener` may accept.

    None: a free port of every interface, as nobody knows by which one the hosts of a job come.
    `tcp://host:fdN` is the listening socket with this descriptor. Raises `ValueError` for an
    address that means every interface, unless `anywhere` it may; `LaunchError` for one that cannot
    be bound.
    """
    if address is None:
        return socket.create_server(("", 0), backlog=_BACKLOG)
    if not anywhere:
        check_address(address)
    inherited = _INHERITED.fullmatch(address)
    made = _bound(address) if inherited is None else _inherited(address, int(inherited[1]))
    try:
        if not anywhere:
            check_address(listens_at(made))  # what the operating system has made of it
    except ValueError:
        made.close()
        raise
    return made


def _bound(address: str) -> socket.socket:
    made: socket.socket | None = None
    try:
        family, place = _place(address)
        made = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_UNIX:
            _remove_stale(made, place)
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        if made is not None:
            made.close()
        why = getattr(error, "strerror", None) or error
        raise LaunchError(f"cannot listen at {address}: {why}") from None
    return made


def _remove_stale(asks: socket.socket, path: str) -> None:
    # of a process that has died: a socket at which nobody listens
    if Path(path).is_socket() and asks.connect_ex(path) == errno.ECONNREFUSED:
        Path(path).unlink(missing_ok=True)


def _inherited(address: str, descriptor: int) -> socket.socket:
    why = "it does not listen"
    try:
        made = socket.socket(fileno=os.dup(descriptor))
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return made
        made.close()
    except OSError as error:
        why = str(error)
    raise LaunchError(
        f"cannot listen at {address}: this process has no listening TCP socket with descriptor "
        f"{descriptor} ({why})"
    )


def _place(address: str) -> tuple[socket.AddressFamily, Any]:
    # what `bind` and `connect` take. Raises `OSError`
    kind, _, place = address.partition("://")
    if kind == "ipc":
        return socket.AF_UNIX, place
    name, _, port = place.rpartition(":")
    number = 0 if port == "*" else _port(port)
    name = "" if name == "*" else _interface_address(name) or name.strip("[]")
    found = socket.getaddrinfo(
        name or None, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, at = found[0]
    return family, at


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > _LAST_PORT:
        raise OSError(errno.EINVAL, f"{text!r} is no port")
    return int(text)


def _interface_address(name: str) -> str | None:
    # the IPv4 address of a network interface of this name, or None
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        asked = fcntl.ioctl(asks, _SIOCGIFADDR, name.encode()[:_IFNAMSIZ].ljust(256, b"\0"))
        return socket.inet_ntoa(asked[20:24])
    return None


def address_towards(other: str, port: int) -> str:
    """Return this port at the address from which this host reaches another. Nothing is sent.
    Raises `OSError` where no network leads there."""
    family, *_, place = socket.getaddrinfo(other, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as asks:
        asks.connect(place)
        own = asks.getsockname()[0]
    return _tcp_address(own, port)


def listens_at(listener: socket.socket) -> str:
    """Return the address at which a socket listens, with its port."""
    at = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"ipc://{at}"
    return _tcp_address(at[0], at[1])


def _tcp_address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def connect_host(address: str, limit_s: float) -> socket.socket:
    """Connect to where another host listens. Raises `OSError`, `TimeoutError` after `limit_s`."""
    check_address(address)
    family, place = _place(address)
    stream = socket.socket(family, socket.SOCK_STREAM)
    try:
        stream.settimeout(limit_s)
        stream.connect(place)
    except BaseException:
        stream.close()
        raise
    send_at_once(stream)
    return stream


def send_at_once(stream: socket.socket) -> None:
    """Have the operating system send what is written at once, however little it is."""
    if stream.family != socket.AF_UNIX:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def check_address(address: str) -> None:
    """Raise `ValueError` unless it is `tcp://host:port` or `ipc://path`, of one interface."""
    kind, _, place = address.partition("://")
    host = place.rpartition(":")[0]
    if kind not in {"tcp", "ipc"} or not place:
        raise ValueError(f"{address!r} is no address: write tcp://host:port or ipc://path")
    if kind == "tcp" and _is_everywhere(host.strip("[]")):
        raise ValueError(f"{address!r} would listen on every interface: name the one to use")


def _is_everywhere(host: str) -> bool:
    if host in {"", "*"}:
        return True
    try:  # as libzmq does: `0` and `0x0` are numbers too
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False  # the name of an interface or of a host
    return any(_is_unspecified(str(place[0])) for *_, place in found)


def _is_unspecified(number: str) -> bool:
    address = ipaddress.ip_address(number)
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def _data_socket(context: Context, kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.sndhwm = socket.rcvhwm = 0  # replies are never dropped; who submits bounds the memory
    socket.linger = _LINGER_MS
    socket.reconnect_ivl = _RECONNECT_MS
    return socket


def _curve_socket(context: Context, kind: int, keys: KeyPair) -> zmq.Socket[bytes]:
    socket = _data_socket(context, kind)
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.maxmsgsize = LONGEST_FRAME
    socket.reconnect_ivl_max = _LATE_RECONNECT_MS
    socket.linger = 0
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    return socket


def free_port() -> int:
    """Return a TCP port of this host's loopback on which nobody listens at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def listen_on_loopback(port: int) -> tuple[int, int]:
    """Return the descriptor of a TCP socket that only this host can reach, and its port.

    For libraries that would otherwise listen on every interface; they own the descriptor.
    """
    listener = socket.create_server(("127.0.0.1", port))
    bound: int = listener.getsockname()[1]
    return listener.detach(), bound


def loopback_listener(host: str, port: int) -> socket.socket:
    """Listen at an address that only this host can reach; processes of one user may share it, and
    each gets some of what connects.

    Raises `ValueError` for an address that others can reach, `OSError` where it cannot be had.
    """
    kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not ipaddress.ip_address(str(address[0])).is_loopback:
        raise ValueError(
            f"{host!r} can be reached from other hosts, and nothing would guard it: use 127.0.0.1"
        )
    return socket.create_server((str(address[0]), port), family=kind, reuse_port=True)
