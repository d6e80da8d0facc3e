"""A record of kept meshes is a file, and a file may say anything."""

import json
import socket
from dataclasses import asdict, replace

from monarch_nb.control.keeping import kept_record
from monarch_nb.control.keeping.kept_record import KeptHead, KeptHosts
from monarch_nb.net.private import make_private, write_new
from tests.notebook.kept_records import kept


def test_a_record_that_names_another_folder_removes_nothing_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    precious = tmp_path / "precious"
    precious.mkdir()
    hosts = KeptHosts(str(precious), KeptHead("", "", [], []), [], [])
    record = replace(
        kept({}, driven=False), host=socket.gethostname(), run_dir=str(precious), hosts=hosts
    )
    record.write()
    assert kept_record.all_records() == [record]  # written just now
    record.remove()
    assert precious.is_dir()
    text = json.dumps({"format": kept_record._FORMAT, **asdict(record)})
    folder = tmp_path / "keys/kept"
    make_private(folder)
    write_new(folder / "another.json", text.replace(str(precious), str(tmp_path / "keys")))
    assert kept_record.all_records() == []
    assert (folder / "another.json").exists()
