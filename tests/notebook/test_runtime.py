"""The real runtime, before there is a client."""

from __future__ import annotations

import sys
import types

from monarch_nb.notebook.runtime import MonarchRuntime


def test_modules_that_another_thread_is_importing_do_not_disturb(monkeypatch):
    for name in ("monarch_nb.control.client", "monarch_nb.actors.proc_mesh"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert MonarchRuntime().running_client() is None
    assert not MonarchRuntime().is_mesh(1)
