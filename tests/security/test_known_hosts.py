"""Workers with a key of their own: known by what a person gives, never by what the network says."""

import os
import stat
import subprocess
import sys

import pytest

from monarch_nb import Actor, attach_to_workers, endpoint
from monarch_nb.errors import AuthError
from monarch_nb.net import keys, known_hosts
from monarch_nb.net.keys import KeyPair
from tests.net.conftest import home, workers  # noqa: F401
from tests.source import ROOT

ADDRESS = "tcp://127.0.0.1:26600"


class Where(Actor):
    @endpoint
    def where(self):
        return 1


def new_key():
    return KeyPair.new().public.decode()


def typed(*words, said=""):
    """Type a command; return its exit code, its output and its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "monarch_nb.control.cli", "hosts", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        input=said,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def others(home, tmp_path):  # noqa: F811
    """The keys of a worker that lets this user in."""
    folder = tmp_path / "others"
    pair = keys.identity(folder)
    listed = folder / keys.AUTHORIZED
    listed.write_text(f"{keys.identity().public.decode()} # the controller\n")
    listed.chmod(0o600)
    return folder, pair.public.decode()


def test_a_worker_with_a_key_of_its_own_is_attached_once_it_is_known(others, workers):  # noqa: F811
    folder, key = others
    [address], _ = workers(1, MONARCH_NB_HOME=str(folder))
    with pytest.raises(RuntimeError, match=f"monarch-nb hosts pin {address}"):
        attach_to_workers(workers=[address]).initialized.get(30)
    code, said, wrong = typed("pin", address, said=f"{key}\n")
    assert (code, wrong) == (0, "")
    assert known_hosts.fingerprint(key.encode()) in said
    actors = attach_to_workers(workers=[address]).spawn_procs().spawn("where", Where)
    assert actors.where.call_one().get(60) == 1


def test_an_address_that_shows_another_key_is_refused(home, workers):  # noqa: F811
    [address], _ = workers(1)  # with this user's own key, which is not the known one
    pinned = known_hosts.pin(address, new_key())
    with pytest.raises(RuntimeError) as raised:
        attach_to_workers(workers=[address]).initialized.get(30)
    for part in (address, known_hosts.fingerprint(pinned.key), pinned.since):
        assert part in str(raised.value)
    assert f"monarch-nb hosts forget {address}" in str(raised.value)
    code, said, _ = typed("forget", address)
    assert code == 0
    assert "is forgotten" in said
    assert attach_to_workers(workers=[address]).initialized.get(30)


def test_a_host_that_is_attached_must_show_the_key_that_was_pinned_since(home, workers):  # noqa: F811
    [address], _ = workers(1)
    assert attach_to_workers(workers=[address]).initialized.get(30)
    known_hosts.pin(address, new_key())
    with pytest.raises(RuntimeError, match=f"monarch-nb hosts forget {address}"):
        attach_to_workers(workers=[address]).initialized.get(30)
    known_hosts.forget(address)
    assert attach_to_workers(workers=[address]).initialized.get(30)


def test_they_are_listed_and_a_known_key_is_not_replaced(home):  # noqa: F811
    assert typed()[1].startswith("no worker has a key")
    key = new_key()
    assert typed("pin", ADDRESS, said=key)[0] == 0
    assert typed("pin", ADDRESS, said=key)[0] == 0  # the same again
    code, _, wrong = typed("pin", ADDRESS, said=new_key())
    assert code == 2
    assert f"monarch-nb hosts forget {ADDRESS}" in wrong
    fingerprint = known_hosts.fingerprint(key.encode())
    assert typed()[1].startswith(f"{ADDRESS}  {fingerprint}  since 2")
    assert stat.S_IMODE((home / known_hosts.KNOWN).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "words, said, why",
    [
        (("forget", ADDRESS), "", "no key is known for"),
        (("pin", ADDRESS), "", "no public key"),
        (("pin", ADDRESS), "x" * 39 + "é", "no public key"),
        (("pin", ADDRESS), "~" * 40, "no public key"),
        (("pin", ADDRESS), "#" * 40, "no public key"),  # more than 32 bytes can be
        (("pin", "node1"), "", "node1"),
    ],
)
def test_a_mistake_is_one_line(home, words, said, why):  # noqa: F811
    code, _, wrong = typed(*words, said=said)
    assert code == 2
    assert why in wrong
    assert wrong.count("\n") == 1


TWICE = b"".join(b"tcp://a:1 %s 2026\n" % (digit * 40) for digit in (b"0", b"1"))


@pytest.mark.parametrize(
    "text", [b"tcp://a:1 short 2026\n", b"one\n", b"\xff\xfe\n", b"\n", b"a b c d\n", TWICE]
)
def test_a_broken_file_is_refused(home, text):  # noqa: F811
    keys.identity()
    path = home / known_hosts.KNOWN
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(AuthError, match=str(path)):
        attach_to_workers(workers=[ADDRESS])
    with pytest.raises(AuthError, match=str(path)):
        known_hosts.pin(ADDRESS, new_key())
    assert path.read_bytes() == text


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o644])
def test_a_file_that_others_may_touch_is_refused(home, mode):  # noqa: F811
    known_hosts.pin(ADDRESS, new_key())
    path = home / known_hosts.KNOWN
    path.chmod(mode)
    with pytest.raises(AuthError, match=f"chmod 600 {path}"):
        attach_to_workers(workers=[ADDRESS])


def test_a_link_is_refused(home, tmp_path):  # noqa: F811
    keys.identity()
    (home / known_hosts.KNOWN).symlink_to(tmp_path / "nowhere")
    with pytest.raises(AuthError, match="cannot be read"):
        known_hosts.known_hosts()


def test_processes_that_pin_at_once_lose_nothing(home):  # noqa: F811
    program = (
        "import sys; from monarch_nb.net import known_hosts\n"
        "from monarch_nb.net.keys import KeyPair\n"
        "sys.stdin.read(1)\n"
        "for i in range(20):\n"
        "    known_hosts.pin(f'tcp://{sys.argv[1]}:{i + 1}', KeyPair.new().public.decode())\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, name],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for name in ("a", "b")
    ]
    for each in both:
        each.stdin.write(b".")
        each.stdin.close()
    assert [each.wait(60) for each in both] == [0, 0]
    assert len(known_hosts.known_hosts()) == 40


def test_a_key_with_a_number_sign_in_it_is_let_in(home):  # noqa: F811
    key = next(key for key in iter(new_key, None) if "#" in key)
    keys.identity()
    listed = home / keys.AUTHORIZED
    listed.write_text(f"# the laptop\n{key} # mine\n\n")
    listed.chmod(0o600)
    assert key.encode() in keys.allowed()
    assert len(keys.allowed()) == 2
