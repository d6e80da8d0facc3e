"""Which of several kept meshes a name means."""

from dataclasses import replace

import pytest

from monarch_nb.notebook import kept_meshes
from monarch_nb.notebook.errors import MagicError
from tests.notebook.kept_records import kept

GPUS = {"gpus": 2}
DRIVEN = kept({"mesh0": GPUS}, driven=True)
LEFT = kept({"mesh0": GPUS, "other": GPUS}, driven=False)


@pytest.mark.parametrize("records", [(DRIVEN, LEFT), (LEFT, DRIVEN)])
@pytest.mark.parametrize("name", [None, "mesh0", "other"])
def test_the_one_that_nobody_drives_is_meant(records, name):
    assert kept_meshes.find(records, name) is LEFT


HERE = "/home/ada/train.ipynb"


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", HERE)


@pytest.mark.usefixtures("here")
def test_up_brings_back_what_this_notebook_has_left():
    mine = replace(LEFT, notebook=HERE)
    assert kept_meshes.left_here([DRIVEN, LEFT, mine], None, GPUS) is mine
    assert kept_meshes.left_here([mine], "other", GPUS) is mine
    assert kept_meshes.left_here([mine], "third", GPUS) is None
    with pytest.raises(MagicError, match="%mesh attach mesh0, or %mesh down --kept mesh0"):
        kept_meshes.left_here([mine], None, {"gpus": 3})


@pytest.mark.usefixtures("here")
def test_up_leaves_those_of_other_notebooks_alone():
    others = replace(LEFT, notebook="/home/ada/other.ipynb")
    driven = replace(DRIVEN, notebook=HERE)
    assert kept_meshes.left_here([LEFT, others, driven], None, GPUS) is None


def test_where_no_server_names_the_notebook_none_is_its_own(monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert kept_meshes.left_here([LEFT], None, GPUS) is None


def test_the_only_one_may_be_driven():
    assert kept_meshes.find([DRIVEN], "mesh0") is DRIVEN
    assert kept_meshes.find([DRIVEN], None) is DRIVEN


def test_a_name_that_is_none():
    with pytest.raises(MagicError, match="no mesh 'mesh1' is kept. There are: mesh0, other"):
        kept_meshes.find([LEFT], "mesh1")
