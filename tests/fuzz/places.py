"""A user's folder in which a target puts a file, and nothing else."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """Have `$MONARCH_NB_HOME` and `$XDG_CONFIG_HOME` be a folder that is new and private."""
    before = {name: os.environ.get(name) for name in ("MONARCH_NB_HOME", "XDG_CONFIG_HOME")}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.environ.update(dict.fromkeys(before, folder))
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def private_file(path: Path, data: bytes) -> None:
    """Write a file that others cannot read, in folders that they cannot enter."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_bytes(data)
