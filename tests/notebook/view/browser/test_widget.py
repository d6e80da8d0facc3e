"""A mesh where it is the last expression of a cell: what each front end gets, and the widget."""

import gc
import json
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ipywidgets
import pytest
from comm.base_comm import BaseComm
from ipywidgets.widgets import widget as registry

from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.view import browser
from monarch_nb.notebook.view.browser import assets, showing
from monarch_nb.notebook.view.browser.showing import MESH, VIEW, Showing
from monarch_nb.notebook.view.browser.widget import MAX_WIDGETS, MeshWidget
from monarch_nb.notebook.view.picture import snapshots
from tests.notebook.fake_client import FakeControl
from tests.notebook.view.fake_browser import check
from tests.notebook.view.shown import FakeHub, snapshot_of
from tests.support import eventually


class RecordingComm(BaseComm):
    """Keeps what is sent to pages."""

    sent: list[tuple[str, Any]]

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        vars(self).setdefault("sent", []).append((msg_type, json.loads(json.dumps(data))))


PING = {
    "content": {"data": {"method": "custom", "content": {"v": 1, "type": "ping"}}},
    "buffers": [],
}


class Home:
    """A session with a fake mesh, whose shell is a kernel's."""

    def __init__(self, gpus: int = 4) -> None:
        self.control = FakeControl()
        sizes = {"hosts": gpus // 8, "gpus": 8} if gpus > 99 else {"gpus": gpus}
        self.mesh = self.control.spawn(sizes, "mesh0")
        self.looks: list[float] = []
        self.control.client.snapshot = snapshot_of(self.control.meshes, self.looks)
        self.control.client.failures = SimpleNamespace(of=lambda _: ())
        self.hub = FakeHub()
        self.allow_stdin = True
        self.shell = SimpleNamespace(kernel=object(), get_parent=self._parent)
        self.showing = Showing(self.shell, self.control, self.hub.open)

    def _parent(self) -> dict[str, Any]:
        return {"header": {}, "content": {"allow_stdin": self.allow_stdin}}

    def show(self, *parts: Any, widget: bool = True) -> dict[str, Any]:
        return self.showing.bundle(*(parts or (self.mesh,)), widget=widget)[0]

    def widget(self, *parts: Any) -> MeshWidget:
        return open_widgets()[self.show(*parts)[VIEW]["model_id"]]


def open_widgets() -> dict[str, Any]:
    """All that are open, by their ids."""
    return registry._instances


@pytest.fixture(autouse=True)
def front(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A front end of two lines, comms that are kept, and nothing left behind."""
    (tmp_path / "widget.js").write_text("export default { render() {} };\n")
    (tmp_path / "mesh.css").write_text(".mnb-root {}\n")
    monkeypatch.setattr(assets, "FRONT", tmp_path)
    monkeypatch.setattr(ipywidgets.comm, "create_comm", RecordingComm)
    for cached in (assets.script, assets.style):
        cached.cache_clear()
    yield
    for each in list(open_widgets().values()):
        each.close()
    for cached in (assets.script, assets.style):
        cached.cache_clear()


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home()
    yield made
    made.showing.close()
    assert made.hub.channels == []


# ----------------------------------------------------------------------------------- the bundle


def test_text_comes_first_then_the_picture_and_our_own(home):
    data = home.show(widget=False)
    assert list(data) == ["text/plain", "text/html", MESH]
    assert open_widgets() == {}
    assert home.hub.channels == []
    assert data["text/plain"].startswith("<FakeMesh mesh0>\nmesh0: 4 ranks (gpus=4): 4 idle")
    assert "<svg" in data["text/html"]


def test_a_widget_comes_to_who_asks_for_it(home):
    data = home.show()
    assert list(data) == ["text/plain", "text/html", VIEW, MESH]
    assert open_widgets()[data[VIEW]["model_id"]].mesh == "mesh0"


def test_without_anywidget_it_is_said_what_to_install(home, monkeypatch):
    monkeypatch.delattr(browser, "widget")
    monkeypatch.delitem(sys.modules, "monarch_nb.notebook.view.browser.widget")
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(MagicError, match=r"pip install 'monarch_nb\[anywidget\]'"):
        home.show()
    assert MESH in home.show(widget=False)


def test_our_own_format_has_a_picture_of_now(home):
    data = json.loads(json.dumps(home.show()))
    own = data[MESH]
    assert (own["v"], own["mesh"], own["ranks"]) == (1, "mesh0", None)
    assert own["snapshot"]["meshes"]["mesh0"]["ranks"] == [["0-3", "idle", "", "", 0]]
    check(own["snapshot"])
    assert own["time"][:2] == "20"


def test_a_slice_shows_its_part(home):
    part = home.mesh.slice(gpus=slice(1, 3))
    data = home.show(part)
    assert list(data[MESH]["ranks"]) == [1, 2]
    assert home.widget(part).ranks == [1, 2]
    assert "2 ranks (gpus=2): 2 idle" in data["text/html"]


def test_ranks_that_are_no_slice_are_shown_together(home):
    data = home.show(home.mesh.slice(gpus=0), home.mesh.slice(gpus=slice(2, 4)))
    assert list(data[MESH]["ranks"]) == [0, 2, 3]
    assert data["text/plain"].startswith("mesh0, ranks 0,2-3\nmesh0: 3 ranks (rank=3): 3 idle")


def test_actors_show_the_processes_they_live_on(home):
    home.control.home = lambda mesh: ("mesh0", [2, 3])
    actors = SimpleNamespace(name="quiet", sizes={"gpus": 2})
    data = home.show(actors)
    assert "quiet</b> 2 ranks (gpus=2) on mesh0: 2 idle" in data["text/html"]
    assert list(data[MESH]["ranks"]) == [2, 3]


def test_a_terminal_gets_text_and_html_and_no_widget(home):
    home.shell.kernel = None
    assert list(home.show()) == ["text/plain", "text/html"]
    assert open_widgets() == {}


def test_a_program_that_runs_the_notebook_gets_no_widget(home):
    home.allow_stdin = False
    data = home.show()
    assert list(data) == ["text/plain", "text/html", MESH]
    assert open_widgets() == {}


def test_without_a_client_a_mesh_is_its_repr_and_none_is_started(home):
    home.control.client = None
    assert home.show() == {
        "text/plain": "<FakeMesh mesh0>",
        "text/html": "<code>&lt;FakeMesh mesh0&gt;</code>",
    }
    assert home.control.client is None


def test_a_mesh_that_nobody_knows_is_its_repr(home):
    home.mesh.stop().get()
    assert home.show()["text/html"] == "<code>&lt;FakeMesh mesh0&gt;</code>"


@pytest.mark.parametrize("gpus, limit", [(64, 40), (1024, 100)])
def test_a_bundle_is_small(gpus, limit):
    home = Home(gpus)
    assert len(json.dumps(home.show())) < limit * 1024
    home.showing.close()


# ----------------------------------------------------------------------------------- the widget


def test_the_widget_carries_its_front_end_and_what_it_shows(home):
    state = home.widget().get_state()
    assert (state["mesh"], state["ranks"]) == ("mesh0", None)
    assert state["_esm"] == assets.script()
    assert state["_css"] == ".mnb-root {}\n"
    assert state["snapshot"]["meshes"]["mesh0"]["sizes"] == [4]


def test_a_thousand_displays_of_a_mesh_keep_one_widget(home):
    models = {home.show()[VIEW]["model_id"] for _ in range(1000)}
    assert len(models) == 1
    assert len(open_widgets()) == 2  # its layout is one too
    assert len(home.hub.channels) == 1


@pytest.mark.slow
def test_many_parts_keep_the_widgets_that_pages_speak_of(home):
    mesh = home.control.spawn({"place": 2 * MAX_WIDGETS}, "large")
    first = home.widget(mesh)
    widgets = []
    for place in range(MAX_WIDGETS + 5):
        widgets.append(weakref.ref(home.widget(mesh.slice(place=place))))
        hear(first, PING)
    assert len(home.hub.channels) == MAX_WIDGETS
    assert len(open_widgets()) == 2 * MAX_WIDGETS
    assert not first.is_closed
    gc.collect()
    assert [ref() is None for ref in widgets] == [True] * 6 + [False] * (MAX_WIDGETS - 1)


def test_a_widget_that_somebody_closed_is_made_again(home):
    first = home.widget()
    ipywidgets.Widget.close_all()
    assert home.hub.channels == []
    second = home.widget()
    assert second is not first
    assert not second.is_closed
    assert len(home.hub.channels) == 1


def test_what_a_page_says_is_only_put_into_the_channel(home):
    widget = home.widget()
    [channel] = home.hub.channels
    threads = [threading.Thread(target=hear, args=[widget, PING]) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert channel.heard == [{"v": 1, "type": "ping"}] * 8


def test_what_the_hub_sends_reaches_the_page_from_its_thread(home):
    widget = home.widget()
    home.hub.tell({"type": "delta"}, times=3)
    eventually(lambda: len(customs(widget)) == 3)
    assert customs(widget)[2] == {"type": "delta", "n": 2}


def customs(widget: MeshWidget) -> list[Any]:
    return [data["content"] for _, data in widget.comm.sent if data.get("method") == "custom"]


def test_what_is_sent_after_the_end_goes_nowhere(home):
    widget = home.widget()
    [channel] = home.hub.channels
    widget.close()
    channel.send({"type": "delta"})
    assert widget.is_closed


def test_nothing_of_it_is_the_pages_to_change(home):
    widget = home.widget()
    hostile = {"mesh": "<b>", "ranks": "all", "snapshot": 1, "_esm": "alert(1)"}
    message = {"content": {"data": {"method": "update", "state": hostile}}, "buffers": []}
    hear(widget, message)
    state = widget.get_state()
    assert (state["mesh"], state["ranks"]) == ("mesh0", None)
    assert state["_esm"] == assets.script()
    assert len(widget.comm.sent) == 1  # when it was made


def test_the_state_is_computed_when_it_is_asked_for(home):
    widget = home.widget()
    home.control.runs.append((1, SimpleNamespace(mesh=home.mesh, pending=(2,))))
    assert ranks_in(widget) == [["2", "busy", "", "", 0], ["0-1,3", "idle", "", "", 0]]
    assert len(widget.comm.sent) == 1


def ranks_in(widget: MeshWidget) -> list[Any]:
    return fresh_state(widget)["snapshot"]["meshes"]["mesh0"]["ranks"]


def hear(widget: MeshWidget, message: dict[str, Any]) -> None:
    """It comes from a page."""
    widget._handle_msg(message)


def looks_of(widget: MeshWidget) -> Any:
    return widget._read_state._reader


def fresh_state(widget: MeshWidget) -> dict[str, Any]:
    """As a page gets it that asks when the last look is old."""
    looks_of(widget)._last = None
    return widget.get_state()


def test_a_page_that_asks_for_all_widgets_costs_one_look(home):
    for gpu in range(4):
        home.show(home.mesh.slice(gpus=gpu))
    before = len(home.looks)
    registry.Widget.get_manager_state()
    for each in list(open_widgets().values()):
        each.get_state()
    assert len(home.looks) <= before + 1


def test_a_widget_of_a_mesh_that_is_gone_stays_and_says_so(home):
    widget = home.widget()
    home.mesh.stop().get()
    for _ in range(2):
        mesh = fresh_state(widget)["snapshot"]["meshes"]["mesh0"]
        assert mesh["ended"] == snapshots.GONE
        assert mesh["sizes"] == [4]
    home.control.client = None
    assert fresh_state(widget)["snapshot"]["meshes"]["mesh0"]["ended"] == snapshots.GONE


def test_a_mesh_that_came_back_is_shown_again(home):
    widget = home.widget()
    home.mesh.stop().get()
    fresh_state(widget)
    home.control.spawn({"gpus": 2}, "mesh0")
    mesh = fresh_state(widget)["snapshot"]["meshes"]["mesh0"]
    assert (mesh["ended"], mesh["sizes"]) == (None, [2])


def test_a_failed_start_of_a_widget_leaves_no_channel(home, monkeypatch):
    def broken(**_: Any) -> None:
        raise OSError("no comm")

    monkeypatch.setattr(ipywidgets.comm, "create_comm", broken)
    with pytest.raises(OSError, match="no comm"):
        home.show()
    assert home.hub.channels == []


@pytest.mark.alone
@pytest.mark.parametrize("gpus, limit_s", [(64, 0.01), (1024, 0.1)])
def test_the_state_is_cheap(gpus, limit_s):
    home = Home(gpus)
    widget = home.widget()
    looks_of(widget)._snapshot = lambda *_: home.control.client.snapshot()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        widget.get_state()
        times.append(time.perf_counter() - began)
    assert min(times) < limit_s
    home.showing.close()


def test_the_bundle_needs_anywidget_only_where_there_is_a_page():
    assert "anywidget" not in vars(showing)
