"""The real controller before there is a client, and that the fake one has its shape."""

import sys
import threading
import types
from inspect import signature

import pytest

from monarch_nb.control import client
from monarch_nb.control.api import Control
from tests.notebook.fake_client import FakeControl


def parameters(cls):
    methods = {name: each for name, each in vars(cls).items() if name[0] != "_"}
    return {
        name: [
            (each.name, each.kind, each.default) for each in signature(method).parameters.values()
        ]
        for name, method in methods.items()
    }


def test_the_fake_controller_has_the_methods_of_the_real_one():
    real, fake = parameters(Control), parameters(FakeControl)
    fake.pop("emit")  # what a rank of it says
    assert fake == real


def test_modules_that_another_thread_is_importing_do_not_disturb(monkeypatch):
    for name in ("monarch_nb.control.client", "monarch_nb.meshes.proc_mesh"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert Control().running_client() is None
    assert not Control().is_mesh(1)


class Proxy:
    """As those of flask and werkzeug are: it stands for something that is not there yet."""

    @property
    def __class__(self):
        raise RuntimeError("working outside of request context")


@pytest.mark.usefixtures("mesh_class")
def test_a_variable_that_cannot_tell_its_class_is_no_mesh():
    assert not Control().is_mesh(Proxy())


@pytest.fixture
def mesh_class(monkeypatch):
    module = types.ModuleType("monarch_nb.meshes.proc_mesh")
    module.ProcMesh = type("ProcMesh", (), {})
    monkeypatch.setitem(sys.modules, "monarch_nb.meshes.proc_mesh", module)


def test_what_is_started_ahead_is_there_to_be_ended_when_the_kernel_ends(monkeypatch):
    begun, goes_on, made = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        goes_on.wait()
        made.append("agent")

    monkeypatch.setattr(client, "prewarm", slow)
    runtime = Control()
    runtime.end_prewarm(5)  # before there is anything
    runtime = Control()
    runtime.prewarm()
    begun.wait()
    threading.Timer(0.05, goes_on.set).start()
    runtime.end_prewarm(5)
    assert made == ["agent"]
    runtime.prewarm()
    runtime.end_prewarm(5)
    assert made == ["agent"]
