"""From what happens to a rank until a person sees it: the mesh panel of JupyterLab, in Chromium.

The kernel is blocked by a cell all the time. The page looks at its own canvas with each frame, and
notes when it has more or fewer pixels of a colour; ranks, page and this process have one clock.
"""

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Page

from benchmarks.browser import notebook, run, start
from benchmarks.measures import Figures, Scale
from benchmarks.timing import median

EVENTS = 60
KILLS = 10
RANKS = 12
SHOWN_S = 2.0  # a change that is not seen by then is missed
PANEL = "monarch-nb:open-panel"

# in a cell a rank is busy, whatever it calls; a wait for others has another colour
EVENTS_OF_RANK_0 = """%%mesh
import time, random
from monarch_nb.process import current
board = current.running().hosting.board
rng, times, waited = random.Random(1), [], None
time.sleep(1.5)
for n in range({events}):
    if rank == 0 and n % 2 == 0:
        times.append(time.time()); waited = board.collective("all_reduce")
    elif rank == 0:
        times.append(time.time()); board.resume(waited)
    time.sleep(0.35 + rng.random() * 0.2)
if rank == 0:
    print("times:", times)"""

# the count of pixels of a colour in the grid, noted whenever it changes
WATCH = """colour => {
    const canvas = document.querySelector('.mnb-scroll canvas');
    const probe = document.createElement('span');
    probe.style.color = `var(--mnb-${colour})`;
    canvas.parentElement.append(probe);
    const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
    probe.remove();
    const seen = (window.benchSeen = []);
    let last = -1;
    const look = () => {
        const { width, height } = canvas;
        const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
        let count = 0;
        for (let i = 0; i < data.length; i += 4)
            if (Math.abs(data[i] - wanted[0]) + Math.abs(data[i + 1] - wanted[1])
                + Math.abs(data[i + 2] - wanted[2]) < 12) count++;
        if (count !== last) seen.push([Date.now() / 1000, count]);
        last = count;
        requestAnimationFrame(look);
    };
    look();
}"""


def seen(_scale: Scale) -> Figures:
    """Of many changes of a rank and several deaths, how late their pixels are."""
    with notebook("Monarch") as page:
        run(page, f"%mesh up --gpus {RANKS}")
        page.evaluate("name => window.jupyterapp.commands.execute(name)", PANEL)
        page.wait_for_selector(".mnb-scroll canvas")
        changes = _changes(page)
        deaths = _deaths(page)
        run(page, "%mesh down")
    return {
        "change_median": median(changes),
        "change_p95": sorted(changes)[int(0.95 * len(changes))],
        "death_median": median(deaths),
        "death_worst": max(deaths),
    }


def _changes(page: Page) -> list[float]:
    page.evaluate(WATCH, "collective")
    said = run(page, EVENTS_OF_RANK_0.format(events=EVENTS))
    times = json.loads(said[said.index("times:") + 6 :].partition("]")[0] + "]")
    return _delays(times, _noted(page))


def _deaths(page: Page) -> list[float]:
    said = run(page, "%%mesh\nimport os\nprint('pid', os.getpid(), 'end')")
    pids = [int(part.split()[0]) for part in said.split("pid")[1:]]
    if len(pids) != RANKS:
        raise AssertionError(f"not the processes of {RANKS} ranks: {said!r:.300}")
    start(page, "import time; time.sleep(12)")
    page.evaluate(WATCH, "dead")
    times, rng = [], random.Random(1)
    time.sleep(1.5)
    for pid in pids[:KILLS]:
        times.append(time.time())
        os.kill(pid, signal.SIGKILL)
        page.wait_for_timeout(500 + 200 * rng.random())
    page.wait_for_timeout(SHOWN_S * 1000)
    delays = _delays(times, _noted(page))
    run(page, "0")
    return delays


def _noted(page: Page) -> list[Any]:
    found: list[Any] = page.evaluate("() => window.benchSeen")
    return found


def _delays(times: Sequence[float], noted: Sequence[Sequence[float]]) -> list[float]:
    """From each event to the first note after it, which comes before the next event's."""
    found = []
    for event in times:
        after = [at - event for at, _ in noted if at >= event]
        if not after or after[0] > SHOWN_S:
            raise AssertionError(f"no pixel has changed within {SHOWN_S:g} s of an event")
        found.append(after[0])
    return found
