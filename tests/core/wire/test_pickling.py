"""Large values are pickled without a copy, in pieces that make an ordinary pickle."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest

from monarch_nb.core.wire import pickling

LARGE = bytes(range(256)) * 4096


@pytest.mark.parametrize("value", [
    LARGE, bytearray(LARGE), "é" * 100_000, [{"deep": (LARGE, 1)}], OrderedDict(a=LARGE), 7, "text",
    [str(number) for number in range(50_000)], np.arange(100_000), (LARGE, np.ones(3)), b"",
])  # fmt: skip
@pytest.mark.parametrize("apart", [True, False])
def test_the_pieces_are_the_pickle(value, apart):
    buffers = [] if apart else None
    pieces = pickling.dump_pieces(value, buffers)
    found = pickling.loads(b"".join(pieces), buffers or ())
    assert pickle.dumps(found) == pickle.dumps(value)


@pytest.mark.parametrize("value", [LARGE, [{"deep": (LARGE, 1)}], OrderedDict(a=LARGE)])
def test_large_bytes_are_pieces_themselves(value):
    pieces = pickling.dump_pieces(value, [])
    assert any(piece is LARGE for piece in pieces)
    assert sum(len(piece) for piece in pieces if piece is not LARGE) < 200


def test_text_that_is_long_is_no_short_atom():
    assert pickling.are_short_atoms((1, "text", None, 2.0))
    assert not pickling.are_short_atoms((1, "x" * 100_000))
    assert not pickling.are_short_atoms((1, b"bytes"))
    assert not pickling.are_short_atoms(((1, 2),))
