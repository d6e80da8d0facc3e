"""How a front end reaches the kernel: as whoever starts it says, and without a word about it."""

import pytest

from tests.kernel.client import KernelClient


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="tcp"),
        pytest.param({"transport_encryption": "required"}, id="curve"),
        pytest.param({"transport": "ipc"}, id="ipc"),
    ],
)
def test_a_kernel_serves_and_says_nothing_in_the_terminal(options, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)  # where ipc puts its sockets, by names without a folder
    with KernelClient("monarch", **options) as kernel:
        if options.get("transport_encryption"):
            assert kernel.client.curve_publickey
        kernel.ok("%mesh up --gpus 2", timeout_s=60)
        assert kernel.ok("%%mesh\nprint('hello')\nrank").text() == "[0-1] hello\n"
        kernel.ok("%mesh down")
    said = capfd.readouterr()
    assert said.out + said.err == ""
