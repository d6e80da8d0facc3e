"""The rig itself: machines are apart, reach each other, and leave nothing, however it ends."""

import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from tests.clusters.machines import Machine
from tests.support import eventually, is_running

PORT = 7000
PLACE = "import socket, sys; place = (sys.argv[1], int(sys.argv[2]))\n"
SERVE = f"{PLACE}s = socket.create_server(place); print('ready', flush=True)\n"
ANSWER = f"{SERVE}while True: s.accept()[0].sendall(b'hello')"
ASK = f"{PLACE}print(socket.create_connection(place, 5).recv(9))"


def python(program: str, address: str) -> list[str]:
    return [sys.executable, "-S", "-c", program, address, str(PORT)]


def serve(machine: Machine, address: str) -> None:
    """Answer at an address of the machine, from now on."""
    server = machine.popen(python(ANSWER, address), stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"


def ask_from(machine: Machine, address: str) -> str:
    return machine.run(python(ASK, address)).strip()


def answers(address: str, within_s: float = 0.2) -> bool:
    """Whether this process reaches a machine that serves."""
    try:
        with socket.create_connection((address, PORT), within_s) as link:
            return link.recv(9) == b"hello"
    except OSError:
        return False


def test_machines_reach_each_other_and_the_test_and_it_reaches_them(machines):
    one, two = machines(2)
    serve(one, one.address)
    assert answers(one.address, 5)
    assert ask_from(two, one.address) == ask_from(two, one.name) == "b'hello'"
    with socket.create_server((machines.address, PORT)) as server:
        asking = two.popen(python(ASK, machines.address))
        link, (peer, _) = server.accept()
        assert peer == two.address
        link.sendall(b"hello")
        link.close()
        assert asking.wait(10) == 0


def test_each_is_a_host_of_its_own(machines, monkeypatch):
    [one], [two] = machines(1, home=True), machines(1)
    monkeypatch.setenv("HOME", "/home-of-the-test")
    show = ["sh", "-c", "hostname; pwd; echo $HOME; ls /sys/class/net /dev/shm $TMPDIR; echo $$"]
    one.run(["sh", "-c", "touch /dev/shm/a $TMPDIR/b /run/c"])
    name, folder, home, *rest = one.run(show).split()
    assert (name, folder, home) == ("node1", os.getcwd(), f"{one.tmpdir}/home")
    assert {"a", "b", "eth0", "lo"} <= set(rest)
    name, _, home, *rest = two.run(show).split()
    assert (name, home) == ("node2", "/home-of-the-test")
    assert not {"a", "b"} & set(rest)
    assert int(rest[-1]) < 20, "process ids start anew"


def test_a_cut_is_silence_and_a_join_is_the_end_of_it(machines):
    one, two = machines(2)
    serve(one, one.address)
    serve(two, two.address)
    with one.cut_off():
        assert not answers(one.address)
        assert answers(two.address, 5)
    eventually(lambda: answers(one.address), 10)


def test_a_name_can_mean_loopback_or_a_network_that_leads_nowhere(machines):
    [debian], [odd] = machines(debian=True), machines(networks=("storage", "lan"))
    resolve = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    assert debian.run([sys.executable, "-c", resolve]).strip() == "127.0.1.1"
    assert odd.run([sys.executable, "-c", resolve]).strip() == odd.addresses["storage"]
    assert odd.address == odd.addresses["lan"]
    serve(odd, odd.addresses["storage"])
    assert not answers(odd.addresses["storage"])
    with pytest.raises(RuntimeError, match="Network is unreachable"):
        ask_from(debian, odd.addresses["storage"])


def test_signals_and_exit_codes_are_those_of_the_command(machines):
    [one] = machines()
    with pytest.raises(RuntimeError, match=r"`.* false` ended with 1"):
        one.run(["false"])
    loop = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    process = one.popen(["sh", "-c", loop], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(10) == 7
    one.assert_idle()


def test_all_that_runs_in_a_machine_ends_with_it(machines):
    [one] = machines()
    deaf = "setsid sh -c 'trap : TERM HUP; sleep 60 & wait'"
    one.run(["sh", "-c", f"exec >/dev/null 2>&1; setsid sleep 60 & {deaf} &"])
    outside = one.popen_outside(["sleep", "60"])
    left = eventually(lambda: len(one.processes()) == 4 and one.processes())
    with pytest.raises(AssertionError, match="node1 is idle; it has\n.*sleep 60"):
        one.assert_idle(within_s=0.01)
    one.lose_power()
    assert not any(map(is_running, left))
    assert outside.returncode == -signal.SIGKILL


SESSION = textwrap.dedent("""
    import signal
    from tests.clusters.machines import Machines
    from tests.support import eventually
    machines = Machines()
    [one] = machines()
    one.popen(["setsid", "sleep", "60"])
    one.popen_outside(["sleep", "60"])
    eventually(lambda: len(one.processes()) == 2)
    print(machines.address, *one.processes(), flush=True)
    signal.pause()
""")


@pytest.mark.fault
def test_a_killed_session_leaves_nothing(can_have_machines):
    session = subprocess.Popen([sys.executable, "-c", SESSION], stdout=subprocess.PIPE, text=True)
    address, *pids = session.stdout.readline().split()
    interface = f"mnbrig{address.split('.')[2]}"
    assert interface in os.listdir("/sys/class/net")
    session.kill()
    session.wait(10)
    session.stdout.close()
    eventually(lambda: not any(is_running(int(pid)) for pid in pids), 10)
    eventually(lambda: interface not in os.listdir("/sys/class/net"), 10)
