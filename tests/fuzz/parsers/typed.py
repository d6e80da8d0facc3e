"""What people type: words of the debugger, ranks, options of `%mesh`, parameters."""

import ast
import itertools

from monarch_nb.control.batch import parameters
from monarch_nb.control.debug import commands as debug_words
from monarch_nb.core.shape.extent import Extent, Selection
from monarch_nb.core.shape.selection import MAX_RANK, SelectionError, read_ranks
from monarch_nb.notebook import commands, options
from monarch_nb.notebook.errors import MagicError

SIZES = {"hosts": 2, "gpus": 4}
RANKS = 8


def debugger_line(data: bytes) -> bool:
    """Any line at a debugger's prompt is a word that is known, or pdb's, or wrong; nothing is
    raised."""
    line = _text(data)
    said = debug_words.at_rank(line), debug_words.at_mesh(line)
    assert all(each.word for each in said if line.strip())
    return said[0].word != "pdb" or said[1].word != "wrong"


def debugger_cast(data: bytes) -> bool:
    """Any text behind `cast` is refused with SelectionError, or names a command and ranks that the
    mesh has."""
    try:
        cast = debug_words.read_cast(_text(data), list(SIZES))
        assert cast.command
        found = debug_words.ranks_at(cast.places or "0", SIZES)
    except SelectionError:
        return False
    assert all(0 <= rank < RANKS for rank in found)
    return True


def ranks(data: bytes) -> bool:
    """Any text is refused with SelectionError, or is ranks up to the largest, each once."""
    try:
        found = read_ranks(_text(data))
    except SelectionError:
        return False
    assert found
    assert len(set(found)) == len(found)
    assert 0 <= min(found) <= max(found) <= MAX_RANK
    assert read_ranks(",".join(map(str, found))) == found
    return True


def selection(data: bytes) -> bool:
    """Any text is refused with ValueError, or selects places of the extent."""
    try:
        found = Selection.from_string(_text(data)).ranks(Extent(list(SIZES), list(SIZES.values())))
    except ValueError:
        return False
    assert all(0 <= rank < RANKS for rank in found)
    return True


def cell_options(data: bytes) -> bool:
    """Any line behind `%%mesh` is refused with MagicError, or is options."""
    try:
        found = options.parse_cell(_text(data))
    except MagicError:
        return False
    assert found.timeout is None or found.timeout > 0
    return True


def line_options(data: bytes) -> bool:
    """Any line behind `%mesh` is refused with MagicError, or is a command and its options."""
    try:
        command, _ = commands.parse_line(_text(data))
    except MagicError:
        return False
    return command in commands.COMMANDS.values()


def run_parameters(data: bytes) -> bool:
    """Any texts behind `-p`, one a line, are refused with ValueError, or are values that the cell
    which assigns them gives again."""
    try:
        found = parameters.values(_text(data).split("\n"))
    except ValueError:
        return False
    cell = parameters.source(found)
    assert parameters.assigned(cell) == list(found)
    assigned = [each.value for each in ast.parse(cell).body if isinstance(each, ast.Assign)]
    assert [repr(ast.literal_eval(each)) for each in assigned] == list(map(repr, found.values()))
    return True


def parameters_cell(data: bytes) -> bool:
    """Any parameters cell is refused with ValueError, or assigns names."""
    try:
        found = parameters.assigned(_text(data))
    except ValueError:
        return False
    assert all(name for name in itertools.islice(found, 100))
    return bool(found)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
