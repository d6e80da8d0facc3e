"""The debugger's prompt in a cell, as a front end meets it: input requests and answers."""

from jupyter_client.blocking import BlockingKernelClient

from benchmarks import cells
from benchmarks.measures import Figures, Scale
from benchmarks.timing import median, now, time_of

STOPS = 5
LINES = 10
SOON_S = 20.0
CELL = "%%mesh\nn = 1\nbreakpoint()\nn = 2"


def prompt(notebook: cells.Notebook, wide: cells.Notebook, _scale: Scale) -> Figures:
    """From a cell to its prompt, and from lines to the next one, on 4 ranks and on 16."""
    with cells.kernel(notebook) as client:
        for code in notebook.setup:
            cells.run(client, code)
        asks, answers = zip(*(_talk(client, "p n") for _ in range(STOPS)), strict=True)
        for code in notebook.teardown:
            cells.run(client, code)
    with cells.kernel(wide) as client:
        cells.run(client, "%mesh up --gpus 16")
        _, casts = zip(*(_talk(client, "cast all p n") for _ in range(STOPS)), strict=True)
        for code in wide.teardown:
            cells.run(client, code)
    return {"asks": median(asks), "answers": median(answers), "cast": median(casts)}


def _talk(client: BlockingKernelClient, line: str) -> tuple[float, float]:
    """Seconds to the first prompt, and the median of those from a line to the next."""
    start = now()
    sent = client.execute(CELL, allow_stdin=True)
    client.get_stdin_msg(timeout=SOON_S)
    asked = now() - start
    took = [time_of(lambda: _type(client, line)) for _ in range(LINES)]
    client.input("continue")
    cells.reply_to(client, sent, now() + SOON_S)
    return asked, median(took)


def _type(client: BlockingKernelClient, line: str) -> None:
    client.input(line)
    client.get_stdin_msg(timeout=SOON_S)
