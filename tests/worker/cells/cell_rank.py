"""A process that runs cells as the main thread of a rank does, without sockets."""

import json
import os
import signal
import subprocess
import sys

from monarch_nb.core.errors.records import ErrorRecord
from tests.source import ROOT
from tests.support import eventually

FILE = "/tmp/ipykernel_1/42.py"

DRIVER = """
import io, json, signal, statistics, sys, time
from monarch_nb.worker.cells.shell import CellShell
shell = CellShell({"rank": 3, "size": 4, "coords": {"gpus": 3}, "device": "cpu"})
def on_sigint(*_):
    shell.interrupt()
signal.signal(signal.SIGINT, on_sigint)
answers = sys.stdout
FILE = "/tmp/ipykernel_1/42.py"
def run(code, first_line, shown):
    return shell.run(code, filename=FILE, first_line=first_line, publish=shown.append)
for line in sys.stdin:
    request = json.loads(line)
    times, shown = [], []
    sys.stdout = sys.stderr = said = io.StringIO()
    for _ in range(request["times"]):
        started = time.perf_counter()
        outcome = run(request["code"], request["first_line"], shown)
        times.append(time.perf_counter() - started)
    error = outcome.error and outcome.error.to_json()
    answer = {"status": outcome.status, "text": outcome.text, "error": error}
    answer |= {"shown": shown[-9:], "said": said.getvalue(), "median_s": statistics.median(times)}
    print(json.dumps(answer), file=answers, flush=True)
shell.close()
"""


class Rank:
    """Runs cells, one after another."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOME": str(folder), "MPLBACKEND": "agg"},
        )

    def start(self, code, first_line=2, times=1):
        request = {"code": code, "first_line": first_line, "times": times}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self):
        answer = json.loads(self.process.stdout.readline())
        record = answer["error"] and ErrorRecord.from_json(answer["error"])
        answer["trace"] = record.format() if record else []
        return answer

    def run(self, code, first_line=2, times=1):
        self.start(code, first_line, times)
        return self.answer()

    def ok(self, code, **options):
        answer = self.run(code, **options)
        assert answer["status"] == "ok", answer["trace"]
        return answer

    def interrupted(self, code, tmp_path):
        """Run a cell that makes a file named by `here` and goes on; send SIGINT then."""
        here = tmp_path / "here"
        self.start(f"import pathlib; here = pathlib.Path({str(here)!r}).touch\n{code}")
        eventually(here.exists, 10)
        self.process.send_signal(signal.SIGINT)
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
