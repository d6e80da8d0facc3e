"""Kernels with real ranks, and the stop button."""

from tests.kernel.client import Cell, KernelClient

PROMPT_S = 0.3
FREE_S = 1.0


def stop(kernel: KernelClient, code: str) -> tuple[Cell, float]:
    """Start a cell, press stop when it says so; the cell and how long the prompt took."""
    cell = kernel.start(code)
    kernel.until(lambda: "started" in cell.text())
    return cell, kernel.stop_s(cell)


def pids_of_ranks(kernel: KernelClient) -> list[int]:
    shown = kernel.ok("%%mesh\nimport os; os.getpid()").displays[0]["text/plain"]
    return [int(line.split()[-1]) for line in shown.splitlines()]
