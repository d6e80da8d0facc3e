"""Jobs with keys and a current folder of their own."""

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
