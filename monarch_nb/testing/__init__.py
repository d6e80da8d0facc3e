"""For tests of programs that use a mesh: faults at named points, and fixtures of pytest.

A `conftest.py` says `pytest_plugins = ["monarch_nb.testing"]`. pytest is loaded by it alone.
"""

pytest_plugins = ("monarch_nb.testing.plugin",)
