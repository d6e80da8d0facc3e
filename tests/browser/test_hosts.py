"""A mesh on several hosts in JupyterLab: the live line, the status, the picture, the form."""

import re
import shutil

import pytest
from playwright.sync_api import Page, WebSocketRoute

from tests.browser.lab import Notebook, Server, picture
from tests.browser.mesh_page import MeshPage
from tests.support import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def test_a_mesh_on_two_hosts(notebook):
    up = notebook.run("%mesh up --on processes --hosts 2 gpus=2")
    line = up.shows("2/2 hosts -> ranks up in")
    assert line.inner_text().count("hosts ->") == 1, "it was changed in place"
    assert "mesh0 is up: 4 ranks (hosts=2 gpus=2)" in up.text
    assert "waited" not in up.text
    jobs = notebook.run("%mesh jobs")
    assert jobs.shows("processes").locator("table").count() == 1
    notebook.run("%mesh status").shows("hosts=1 gpus=1")
    notebook.start("mesh0").shows("hosts")
    for theme in ("Light", "Dark"):
        notebook.theme(f"JupyterLab {theme}")
        picture(notebook.page, f"hosts-{theme.lower()}")
    assert "hosts of mesh0 are given back" in notebook.run("%mesh down").text


def test_the_panel_has_a_form_for_hosts_and_buttons_for_more_and_fewer(notebook: Notebook) -> None:
    lab = MeshPage(notebook)
    lab.open()
    panel = lab.panel
    panel.get_by_label("Where").select_option("processes")
    panel.get_by_label("Hosts", exact=True).fill("2")
    panel.get_by_label("Sizes").fill("gpus=2")
    line = panel.locator(".mnb-upform-line")
    assert line.inner_text() == "%mesh up gpus=2 --on processes --hosts 2"
    lab.pictures("hosts-form")
    panel.get_by_role("button", name="Bring up 4 ranks on 2 hosts").click()
    coming = panel.get_by_role("group", name="mesh0 · processes, 2 hosts")
    coming.wait_for()
    view = lab.view()
    view.says("4 ranks: 4 idle")
    coming.wait_for(state="detached")
    panel.get_by_text("processes, 2 hosts").wait_for()
    lab.pictures("hosts-up")
    notebook.run("%%mesh\nkept = rank").finish()

    hosts = panel.get_by_label("Hosts of this mesh")
    assert hosts.input_value() == "2"
    scale = panel.get_by_role("button", name="scale")
    assert scale.is_disabled(), "it has so many"
    hosts.fill("3")
    scale.click()
    view.says("6 ranks: 6 idle")
    assert "[0-3] True\n[4-5] False" in notebook.run("%%mesh\nprint('kept' in globals())").text
    hosts.fill("1")
    scale.click()
    lab.page.get_by_text("Ranks 2-5 of mesh0 will end, with what they hold.").wait_for()
    lab.page.get_by_role("button", name="Give hosts back").click()
    view.says("2 ranks: 2 idle")
    view.press("stop")
    panel.get_by_text("No mesh is up yet.").wait_for()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
def test_the_panel_says_why_hosts_did_not_come(new_notebook: Notebook) -> None:
    # its own: a page that is loaded again opens its notebook once more, some time after it is there
    lab = MeshPage(new_notebook)
    lab.open()
    panel = lab.panel
    panel.get_by_label("Where").select_option("ssh")
    panel.get_by_text("Name the hosts: node1,node2").wait_for()
    panel.get_by_label("Names of hosts").fill("nowhere.invalid")
    panel.get_by_label("Sizes").fill("gpus=4")
    panel.get_by_role("button", name="Bring up 4 ranks on 1 host").click()
    failed = panel.get_by_role("group", name="No hosts")
    failed.get_by_text("mesh0 was not started: nowhere.invalid").wait_for()
    lab.pictures("hosts-failed")
    lab.page.reload()
    failed.wait_for()
    failed.get_by_role("button", name="dismiss").click()
    failed.wait_for(state="detached")
    panel.get_by_label("Sizes").fill("gpus=2 gpus=3")
    panel.get_by_text('"gpus" is there twice').wait_for()


class LateKernels:
    """Hold back what kernels say to a page until `let_go`, and keep in `sent` what it says."""

    def __init__(self, page: Page) -> None:
        self._held: list[tuple[WebSocketRoute, str | bytes]] | None = []
        self.sent = b""
        self._page = page
        page.route_web_socket(re.compile("/api/kernels/.*/channels"), self._route)

    def let_go(self) -> None:
        held, self._held = self._held, None
        for socket, said in held or ():
            socket.send(said)

    def have_heard(self, word: bytes) -> bool:
        self._page.wait_for_timeout(20)  # Playwright hands on what is sent meanwhile, and only then
        return word in self.sent

    def _route(self, socket: WebSocketRoute) -> None:
        kernel = socket.connect_to_server()

        def say(said: str | bytes) -> None:
            if self._held is None:
                socket.send(said)
            else:
                self._held.append((socket, said))

        def take(sent: str | bytes) -> None:
            self.sent += sent if isinstance(sent, bytes) else sent.encode()
            kernel.send(sent)

        kernel.on_message(say)
        socket.on_message(take)


def test_a_kernel_that_says_late_what_it_can_is_asked_in_one_place(
    page: Page, server: Server
) -> None:
    """A subshell reads by itself: of two, the one may have a question before the other knows who
    asks, and nobody answers it."""
    kernels = LateKernels(page)
    page.goto(server.url("lab"), wait_until="domcontentloaded")
    page.click(".jp-LauncherCard[data-category='Notebook'][title='Monarch']")
    eventually(lambda: kernels.have_heard(b"create_subshell_request"), 30)
    kernels.let_go()
    lab = MeshPage(Notebook(page))
    lab.open()
    lab.panel.get_by_label("Where").select_option("processes")
    lab.status("no mesh")
    [mesh] = re.findall(rb'"comm_id":"([^"]+)","target_name":"monarch_nb.mesh"', kernels.sent)
    found = rb'"subshell_id":"([^"]+)"[^}]*}[^}]*}[^}]*}{"comm_id":"' + mesh
    places = re.findall(found, kernels.sent)
    assert len(places) > 3
    assert len(set(places)) == 1
