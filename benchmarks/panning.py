"""How smoothly a page moves over 1 024 ranks that all change: the widget's own front end, fed by a
kernel that is none (`tests/front`), in Chromium."""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.browser import chromium
from benchmarks.measures import Figures, Scale
from benchmarks.timing import median

ROOT = Path(__file__).parents[1]
WORLD = "tests/front/demo.html?world=thousand&width=500&theme=light&live=1"
ROUNDS = 5
ZOOMS = 2

# frames each second, the longest task in ms, and how far there is to pan in CSS pixels
PAN = """async () => {
    const tasks = [];
    const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries()));
    observer.observe({ entryTypes: ["longtask"] });
    const pane = document.querySelector(".mnb-scroll");
    let frames = 0;
    const began = performance.now();
    while (performance.now() - began < 2000) {
        await new Promise(requestAnimationFrame);
        pane.scrollTo(100 + 100 * Math.cos(frames / 20), 200 + 200 * Math.sin(frames / 20));
        frames++;
    }
    const seconds = (performance.now() - began) / 1000;
    const room = pane.scrollHeight - pane.clientHeight;
    await new Promise(requestAnimationFrame);
    observer.disconnect();
    const longest = Math.max(0, ...tasks.map((task) => task.duration));
    return { fps: frames / seconds, longest, room };
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing on the terminal."""


def pan(_scale: Scale) -> Figures:
    """Frames each second, and the longest task of a round (none is as long as 50 ms: 0)."""
    with site() as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 524, "height": 900}, device_scale_factor=2)
        page.goto(f"{url}/{WORLD}")
        page.wait_for_function("() => window.demo?.connection.state === 'live'")
        page.locator(".mnb-scroll canvas").hover(position={"x": 100, "y": 100})
        page.keyboard.down("Control")
        for _ in range(ZOOMS):
            page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        rounds = [page.evaluate(PAN) for _ in range(ROUNDS)]
    if min(each["room"] for each in rounds) <= 100:
        raise AssertionError("there is nothing to pan over")
    return {
        "rate": median([each["fps"] for each in rounds]),
        "task": median([each["longest"] / 1e3 for each in rounds]),
    }


@contextmanager
def site() -> Iterator[str]:
    """The repository on loopback: a page loads no modules from files."""
    handler = functools.partial(_Quiet, directory=str(ROOT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
