"""What a rank remembers of cells whose controller has gone."""

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Message
from monarch_nb.core.wire.messages.cells import RunCell
from monarch_nb.worker.cells.unseen import MAX_CELLS, UnseenCells


def asked(reply: int) -> Message:
    return Message((frames.RELAY, 0, 0, 0, 0, 0, 1, reply), b"")


def test_of_too_many_cells_the_oldest_is_forgotten():
    unseen = UnseenCells()
    for reply in range(MAX_CELLS + 1):
        unseen.add(RunCell(), asked(reply))
    assert unseen.resume((1, 0), asked(9_999)) is None
    assert unseen.resume((1, 1), asked(9_999)) is not None
