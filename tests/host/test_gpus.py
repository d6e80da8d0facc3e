"""What ranks use of GPUs: as NVML tells it, or nothing, and never a word of complaint."""

import os
import threading
from types import SimpleNamespace

import pytest

from monarch_nb.host.status.gpus import Gpus, use_of_all
from tests.support import eventually

GIB = 1 << 30


class FakeNvml:
    """Two GPUs: process 10 computes on both, 11 on the second. `broken` names what raises."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.calls: list[str] = []
        self.asked = threading.Event()

    def __getattr__(self, name: str):
        def call(*args: object):
            self.calls.append(name)
            if name in self.broken:
                raise RuntimeError(f"{name} does not work today")
            return self._answer(name, *args)

        return call

    def _answer(self, name: str, *args: object):
        if name == "nvmlDeviceGetCount":
            return 2
        if name == "nvmlDeviceGetHandleByIndex":
            return args[0]
        if name == "nvmlDeviceGetUtilizationRates":
            self.asked.set()
            return SimpleNamespace(gpu=(30, 90)[args[0]])
        if name == "nvmlDeviceGetComputeRunningProcesses":
            on = {0: {10: 1 * GIB}, 1: {10: 2 * GIB, 11: None}}[args[0]]
            return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in on.items()]
        return None


def test_memory_is_that_of_the_process_and_time_that_of_its_busiest_gpu():
    assert use_of_all(FakeNvml(), [0, 1]) == {10: (90, 3 * GIB), 11: (90, None)}


def test_a_gpu_that_does_not_tell_a_share_still_tells_memory():
    found = use_of_all(FakeNvml("nvmlDeviceGetUtilizationRates"), [0, 1])
    assert found == {10: (None, 3 * GIB), 11: (None, None)}


def test_a_lost_gpu_hides_no_other():
    class OneLost(FakeNvml):
        def _answer(self, name, *args):
            if name == "nvmlDeviceGetComputeRunningProcesses" and args[0] == 0:
                raise RuntimeError("GPU is lost")
            return super()._answer(name, *args)

    assert use_of_all(OneLost(), [0, 1]) == {10: (90, 2 * GIB), 11: (90, None)}


def test_it_is_asked_only_while_somebody_looks():
    nvml = FakeNvml()
    gpus = Gpus(lambda: nvml)
    assert gpus.use_of(10) == (None, None)
    assert nvml.calls == []
    gpus.look()
    gpus.look()
    eventually(lambda: gpus.use_of(10) == (90, 3 * GIB))
    assert gpus.use_of(12) == (None, None)
    gpus.rest()
    eventually(lambda: "nvmlShutdown" in nvml.calls)
    assert nvml.calls.count("nvmlInit") == 1
    assert gpus.use_of(10) == (None, None)


@pytest.mark.parametrize("what", ["module", "nvmlInit", "nvmlDeviceGetCount"])
def test_without_a_driver_there_are_no_figures_and_no_noise(what, capfd):
    def load():
        if what == "module":
            raise ImportError("No module named 'pynvml'")
        return FakeNvml(what)

    gpus = Gpus(load)
    gpus.look()
    eventually(lambda: "monarch-gpus" not in {each.name for each in threading.enumerate()})
    assert gpus.use_of(10) == (None, None)
    gpus.rest()
    assert capfd.readouterr() == ("", "")


@pytest.mark.gpu
def test_a_real_gpu_tells_what_this_process_uses():
    pytest.importorskip("pynvml")
    torch = pytest.importorskip("torch")
    held = torch.ones(64 << 20, device="cuda")  # 256 MiB
    gpus = Gpus()
    gpus.look()
    eventually(lambda: gpus.use_of(os.getpid())[1], 10.0)
    percent, size = gpus.use_of(os.getpid())
    assert size >= held.nbytes
    assert 0 <= percent <= 100
    gpus.rest()
