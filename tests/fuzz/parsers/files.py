"""Files that the program has written, and reads again: manifests, jobs, runs, records, logs.

Only what reads: what removes or ends something by what a file says is not for random bytes.
"""

import json
import os
import socket
import tempfile
from pathlib import Path

from monarch_nb.control.batch import run_record
from monarch_nb.control.engines import Wanted
from monarch_nb.control.jobs import profiles
from monarch_nb.control.jobs.job import job_loads
from monarch_nb.control.jobs.kept import records
from monarch_nb.control.jobs.local import LocalJob
from monarch_nb.control.jobs.slurm.slurm_job import SlurmJob
from monarch_nb.control.jobs.ssh import SSHJob
from monarch_nb.control.keeping.kept_record import KeptRecord
from monarch_nb.core.wire import manifest
from monarch_nb.core.wire.messages import codec
from monarch_nb.data import record_log
from monarch_nb.errors import ProtocolError
from monarch_nb.host.guard import started_at
from tests.fuzz.places import home, private_file

_KNOWN = (LocalJob, SSHJob, SlurmJob)  # a job is read only where its class was imported


def manifest_entries(data: bytes) -> bool:
    """Any entries are refused with ProtocolError or ValueError, or lie inside of the folder."""
    try:
        body = codec.json_of(data)
        rows = body.get("entries", [])
        found = [codec.decode(manifest.Entry, each) for each in rows if isinstance(each, dict)]
        manifest.check_entries(found, {""})
    except (ProtocolError, ValueError, TypeError):
        return False
    for entry in found:
        inside = os.path.normpath(f"/top/{entry.path}")
        assert inside.startswith("/top/")
        if entry.kind == manifest.LINK:
            place = f"{os.path.dirname(inside)}/{entry.target}"
            assert os.path.normpath(place).startswith("/top")
    return bool(found)


def job_state(data: bytes) -> bool:
    """Any bytes are refused with ValueError, or are a job that is saved as it was."""
    try:
        job = job_loads(data)
    except ValueError:
        return False
    assert isinstance(job, _KNOWN)
    saved = job.dumps()
    assert job_loads(saved).dumps() == saved
    return True


def run(data: bytes) -> bool:
    """Any record of a run is one that can be listed, or is as if it were not there."""
    with home() as folder:
        private_file(folder / "runs/fit-1/record.json", data)
        found = run_record.find("fit-1")
    assert found is None or (found.name == "fit-1" and isinstance(found.state, str))
    return found is not None


def applied_job(data: bytes) -> bool:
    """Any record of a job is one that lives, or is removed."""
    with home() as folder:
        file = folder / "contexts/fit.json"
        here = os.getpid()
        alive = data.replace(b'"PID"', b"%d" % here)
        private_file(file, alive.replace(b'"STARTED"', b"%d" % (started_at(here) or 0)))
        found = records.find("fit")
        assert file.exists() == (found is not None)
    return found is not None


def kept_record(data: bytes) -> bool:
    """Any record of kept meshes tells whether it is in force; nothing is raised."""
    asks = KeptRecord(
        host=socket.gethostname(), run_dir="/run/kept", controller=1, controller_pid=os.getpid(),
        controller_started=started_at(os.getpid()) or 0, agent=0, agent_pid=0, agent_started=0,
        key="", for_s=1.0, config={}, notebook="", meshes=[],
    )  # fmt: skip
    with home() as folder:
        private_file(folder / "kept/kept.json", data)
        return asks.is_in_force()


def wanted(data: bytes) -> bool:
    """Any list is refused with ValueError or TypeError, or is what was asked for."""
    try:
        found = Wanted.from_json(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(found.places, tuple)


def profile_file(data: bytes) -> bool:
    """Any file of profiles gives words for each profile that makes sense; nothing is raised."""
    with home() as folder:
        private_file(folder / "monarch_nb/profiles.toml", data)
        found = profiles.usable()
    assert all(isinstance(word, str) for words in found.values() for word in words)
    return bool(found)


def output_log(data: bytes) -> bool:
    """Any log is whole records, which are the same read at once and as it grows."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder, "log")
        path.write_bytes(data)
        found = list(record_log.read_log(path))
        followed = record_log.FollowedLog(path)
        grown = followed.read(1 << 20)
        followed.close()
    assert list(map(repr, grown)) == list(map(repr, found))
    assert sum(len(each.payload) for each in found) <= len(data)
    return bool(found)
