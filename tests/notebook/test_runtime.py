"""The real runtime, before there is a client."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from monarch_nb.control import client
from monarch_nb.notebook.runtime import MonarchRuntime


def test_modules_that_another_thread_is_importing_do_not_disturb(monkeypatch):
    for name in ("monarch_nb.control.client", "monarch_nb.meshes.proc_mesh"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert MonarchRuntime().running_client() is None
    assert not MonarchRuntime().is_mesh(1)


class Proxy:
    """As those of flask and werkzeug are: it stands for something that is not there yet."""

    @property
    def __class__(self):
        raise RuntimeError("working outside of request context")


@pytest.mark.usefixtures("mesh_class")
def test_a_variable_that_cannot_tell_its_class_is_no_mesh():
    assert not MonarchRuntime().is_mesh(Proxy())


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
    runtime = MonarchRuntime()
    runtime.end_prewarm(5)  # before there is anything
    runtime = MonarchRuntime()
    runtime.prewarm()
    begun.wait()
    threading.Timer(0.05, goes_on.set).start()
    runtime.end_prewarm(5)
    assert made == ["agent"]
    runtime.prewarm()
    runtime.end_prewarm(5)
    assert made == ["agent"]
