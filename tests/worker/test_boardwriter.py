"""What a rank writes on the status board."""

from __future__ import annotations

import mmap

import pytest

from monarch_nb.core.board import SLOT_BYTES, BoardSlot
from monarch_nb.worker.boardwriter import BoardWriter


@pytest.fixture
def board(tmp_path):
    """A writer, and what is read of it."""
    path = tmp_path / "board"
    path.write_bytes(bytes(mmap.PAGESIZE - mmap.PAGESIZE % SLOT_BYTES))
    writer = BoardWriter([str(path), 0])

    def read():
        status = BoardSlot(path.read_bytes(), 0).read()
        return status.state_name, status.what, status.since_ns

    yield writer, read
    writer._slot._buffer.close()


def test_a_call_within_a_cell_leaves_the_rank_busy_with_the_cell(board):
    writer, read = board
    writer.turn("cell")
    began = read()
    writer.busy("step")
    assert read()[:2] == ("busy", "step")
    writer.idle()
    assert read() == began
    assert began[:2] == ("busy", "cell")
    writer.turn("")
    assert read()[:2] == ("idle", "")
