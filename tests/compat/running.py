"""Programs that import `monarch`, run to their end."""

import os
import subprocess
import sys

from tests.source import ROOT

# tests that import monarch_nb.compat leave the variable behind, for their ranks
_ENVIRONMENT = {name: each for name, each in os.environ.items() if name != "MONARCH_NB_COMPAT"}


def run(tmp_path, source, *arguments, compat="import", **env):
    """Run a program to its end; `compat`: how Monarch's names get there: by an import in it, by
    the environment variable alone, by `python -m monarch_nb.compat`, or not at all ("")."""
    program = tmp_path / "program.py"
    first = "import monarch_nb.compat\n" if compat == "import" else ""
    program.write_text(first + source)
    if compat == "variable":  # by a file in site-packages: `pip install` brings it
        env = {"MONARCH_NB_COMPAT": "1", **env}
    runner = ["-m", "monarch_nb.compat"] if compat == "module" else []
    return start(tmp_path, *runner, str(program), *arguments, **env)


def start(tmp_path, *words, **env):
    """Run Python with these words to its end."""
    return subprocess.run(
        [sys.executable, *words],
        env={**_ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ROOT}", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
