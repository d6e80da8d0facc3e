"""Where the sources of debugged cells lie, and who may be there first."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86

from tests.kernel.client import KernelClient
from tests.kernel.front_end import FrontEnd
from tests.support import eventually

NOBODY = 65534
CELL = "token = 'only for me'\nshort = token[:4]\nprint(short)\n"


@pytest.fixture
def shared(needs, monkeypatch):
    """A folder as /tmp is, which is that of the kernel's."""
    needs("root")
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o1777)
        monkeypatch.setenv("TMPDIR", made)
        yield Path(made)


def put_a_link(folder: Path, precious: Path) -> None:
    """Another user makes the folder, and a link where the file of the cell is to be."""
    name = murmur2_x86(CELL, get_tmp_hash_seed())
    command = f"mkdir -p -m 777 {folder}; ln -sf {precious} {folder}/{name}.py"
    subprocess.run(
        ["/bin/sh", "-ec", command], user=NOBODY, group=NOBODY, extra_groups=[], check=True
    )


@pytest.mark.slow
def test_a_stranger_neither_reads_them_nor_has_files_overwritten(shared, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    with KernelClient("monarch") as kernel:
        page = FrontEnd(kernel)
        put_a_link(shared / f"ipykernel_{kernel.manager.provisioner.pid}", precious)
        ours = Path(page.ok("debugInfo")["tmpFilePrefix"])
        put_a_link(ours, precious)  # who can guess it
        page.on()
        refused = page.ask("dumpCell", code=CELL)
        assert precious.read_text() == "precious"
        assert not refused["success"]
        assert "must be a directory of mode 0700 that you own" in refused["message"]
        for left in ours.iterdir():
            left.unlink()
        ours.rmdir()
        cell, stopped = page.stop_at(CELL, 2)
        assert page.frames(stopped)[0]["source"]["path"].startswith(f"{ours}/")
        assert ours.stat().st_mode & 0o777 == 0o700
        page.ok("continue", threadId=stopped["threadId"])
        assert kernel.finish(cell).text() == "only\n"
        page.off()
        assert precious.read_text() == "precious"
        kernel.manager.shutdown_kernel(now=False)
        eventually(lambda: not ours.exists(), what="the folder is gone with its kernel")
