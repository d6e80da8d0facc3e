"""Tracebacks of ranks have colours, and nothing else of them changes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.notebook.display.colours import coloured

RED, GREEN, END = "\x1b[31m", "\x1b[32m", "\x1b[0m"


@pytest.mark.parametrize("line, contains", [
    ("ranks 0-3: ValueError: bad", f"{RED}ValueError{END}: bad"),
    ("rank 2: torch.cuda.OutOfMemoryError: CUDA", f"{RED}torch.cuda.OutOfMemoryError{END}"),
    ("ranks 0,2-3: ValueError, 3 different messages", f"{RED}ValueError{END}, 3 "),
    ("KeyboardInterrupt: all ranks have stopped", f"{RED}KeyboardInterrupt{END}"),
    ("  Cell In[3], line 2, in step", f"{GREEN}Cell In[3]{END}, line "),
    ('  File "/a b.py", line 12, in <module>', f'{GREEN}File "/a b.py"{END}, line '),
    ("      ~~~^^^", None),
    ("      ^^^", "\x1b[1;31m^^^"),
    ("    raise ValueError: bad", None),
    ("  | ValueError: one of a group", f"  | {RED}ValueError{END}"),
])  # fmt: skip
def test_parts_of_a_line(line, contains):
    shown = coloured(line)
    assert shown == line if contains is None else contains in shown


@given(st.text("ab: ,^|0-[]()\"'FileCelIn rankError\n"))
def test_the_text_stays_as_it_is(line):
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured(line)) == line
