"""`import monarch_nb.compat` makes `import monarch` mean this package: its programs run unchanged.

Only what is served is there (`names.py`), each the very object of `monarch_nb`; asking for
anything else fails as for any module that lacks a name. If the real `monarch` is installed, it is
hidden from here on. `MONARCH_NB_COMPAT=1` has the same effect in every Python that monarch_nb is
installed in; it is set here for ranks and other child processes. `python -m monarch_nb.compat
program.py` does it for one program.
"""

from __future__ import annotations

from monarch_nb.compat.hook import install

install()
