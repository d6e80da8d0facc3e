"""The files of cells: where they are missing, and nowhere else."""

import pytest

from monarch_nb.debugger.cell_files import CellFiles, new_folder
from monarch_nb.errors import AuthError


def test_a_cell_is_written_where_it_is_missing(tmp_path):
    path = tmp_path / "ipykernel_7/123.py"
    files = CellFiles()
    files.write(str(path), "a = 1\n")
    files.write(str(path), "a = 1\n")
    assert path.read_text() == "a = 1\n"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    files.remove()
    assert not path.parent.exists()


def test_what_the_kernel_has_written_stays(tmp_path):
    folder = tmp_path / "ipykernel_7"
    folder.mkdir(mode=0o700)
    (folder / "1.py").write_text("there")
    files = CellFiles()
    files.write(str(folder / "1.py"), "new")
    files.remove()
    assert (folder / "1.py").read_text() == "there"


@pytest.mark.parametrize("path", ["/etc/passwd", "/tmp/ipykernel_1/../x.py", "ipykernel_1/x.py"])
def test_no_other_file_is_written(path):
    with pytest.raises(ValueError, match="no file of a cell"):
        CellFiles().write(path, "x")


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    folder = tmp_path / "ipykernel_7"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(AuthError, match="0700"):
        CellFiles().write(str(folder / "1.py"), "x")
    assert not list(folder.iterdir())


def test_nothing_is_written_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "ipykernel_7"
    folder.mkdir(mode=0o700)
    (folder / "1.py").symlink_to(precious)
    CellFiles().write(str(folder / "1.py"), "x")
    assert precious.read_text() == "precious"


def test_nobody_guesses_the_folder():
    assert new_folder() != new_folder()
    assert not new_folder().exists()
