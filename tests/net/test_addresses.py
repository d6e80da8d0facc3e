"""Addresses of workers as Monarch's programs write them."""

import os
import socket
import subprocess
import sys

import pytest

from monarch_nb import attach_to_workers, run_worker_loop_forever, shutdown_context
from monarch_nb.control.hosts.addresses import WorkerAddress
from monarch_nb.core.shape.extent import Extent
from monarch_nb.errors import LaunchError
from monarch_nb.net.wire import free_port


@pytest.mark.parametrize(
    "text, dial, bind",
    [
        ("tcp://node1:26600", "tcp://node1:26600", None),
        ("ipc:///tmp/host", "ipc:///tmp/host", None),
        ("service-0123456789abcdef@ipc:///tmp/host", "ipc:///tmp/host", None),
        ("service<2MuAHeDjLCEd>@tcp://node1:1", "tcp://node1:1", None),
        ("tcp://node1:1@tcp://10.0.0.1:2", "tcp://node1:1", "tcp://10.0.0.1:2"),
        ("s<2M>@tcp://node1:1@tcp://0.0.0.0:2", "tcp://node1:1", "tcp://0.0.0.0:2"),
    ],
)
def test_the_parts_of_an_address(text, dial, bind):
    assert WorkerAddress.from_text(text) == (dial, bind)


@pytest.mark.parametrize(
    "text", ["node1:26600", "", "tcp://a:1@b:2", "tcp://a:1@tcp://b:2@tcp://c:3"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="is no address of a worker"):
        attach_to_workers(workers=[text])


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:0", "tcp://*:0", "x@tcp://0.0.0.0:0"])
def test_every_interface_is_refused_where_it_was_not_written_apart(home, text):
    with pytest.raises(ValueError, match="every interface"):
        run_worker_loop_forever(address=text)


@pytest.mark.slow
def test_others_use_one_address_and_it_listens_at_another(workers):
    port = free_port()
    addresses, [worker] = workers(address=f"tcp://localhost:{port}@tcp://127.0.0.1:{port}")
    assert addresses == [f"tcp://localhost:{port}"]
    hosts = attach_to_workers(workers=[f"tcp://127.0.0.1:{port}@tcp://elsewhere:1"])
    assert hosts.spawn_procs().execute(os.getpid).values() != [worker.pid]


@pytest.mark.slow
def test_a_worker_listens_on_a_socket_that_it_is_given(workers):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        [address], _ = workers(address=f"tcp://localhost:fd{listener.fileno()}", listener=listener)
    assert address == f"tcp://127.0.0.1:{port}"
    hosts = attach_to_workers(workers=[address])
    assert hosts.extent == Extent(["hosts"], [1])
    assert hosts.spawn_procs().execute(lambda: 7).values() == [7]


def test_a_descriptor_that_is_no_socket_is_named(home):
    with pytest.raises(LaunchError, match="no listening TCP socket with descriptor 987"):
        run_worker_loop_forever(address="tcp://localhost:fd987")


MONARCHS_WORKER = """
import sys
from monarch._rust_bindings.monarch_hyperactor.proc import ProcId
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(
    address=sys.argv[1], service_proc_id=ProcId.from_string(sys.argv[2]), ca="trust_all_connections"
)
"""


@pytest.mark.slow
def test_a_worker_as_monarchs_tutorial_starts_it(home, tmp_path):
    from monarch_nb.compat.service_identity import new_service_proc_id, service_proc_addr

    name, address = new_service_proc_id(), f"ipc://{tmp_path}/w"
    worker = subprocess.Popen(
        [sys.executable, "-c", MONARCHS_WORKER, address, str(name)],
        env={**os.environ, "MONARCH_NB_COMPAT": "1"},
    )
    try:
        hosts = attach_to_workers(
            workers=[service_proc_addr(address, name)], ca="trust_all_connections",
            service_proc_ids=[name], name="tutorial",
        )  # fmt: skip
        assert hosts.spawn_procs().execute(lambda: 7).values() == [7]
        shutdown_context().get(20)
    finally:
        worker.terminate()
        worker.wait(10)
