"""What a program asks a job for, and what it finds when it runs again."""

import json
import os
import pickle
import sys

import pytest

from monarch_nb import shutdown_context
from monarch_nb.job import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    LocalJob,
    MeshAdminConfig,
    TelemetryConfig,
    job_load,
    job_loads,
    load_current_job,
    set_current_job,
)


class Booking(JobTrait):
    """A job that books rooms instead of hosts."""

    def __init__(self, rooms):
        super().__init__()
        self.rooms = rooms
        self.booked = False

    def _create(self, client_script):
        assert client_script is None
        self.booked = True
        events.append(f"book {self.rooms}")
        if stopped == ["create"]:
            raise KeyboardInterrupt

    def _state(self):
        if stopped == ["state"]:
            raise KeyboardInterrupt
        return JobState({f"room{room}": room for room in range(self.rooms)})

    def can_run(self, spec):
        return self.booked and isinstance(spec, Booking) and spec.rooms == self.rooms

    def _kill(self):
        events.append(f"free {self.rooms}")


events = []
stopped = []


@pytest.fixture(autouse=True)
def _no_events():
    events.clear()
    stopped.clear()


def test_apply_asks_once_and_kill_gives_back_once():
    job = Booking(2)
    assert not job.active
    assert job.apply_id is None
    job.apply()
    first = job.apply_id
    job.apply()
    assert (job.apply_id, job.active) == (first, True)
    assert job.state(cached_path=None).room1 == 1
    job.kill()
    job.kill()
    assert not job.active
    assert events == ["book 2", "free 2"]
    job.apply()
    assert job.apply_id != first


@pytest.mark.parametrize(
    "where, ask", [("create", Booking.apply), ("state", Booking.state)], ids=["apply", "state"]
)
def test_the_stop_button_gives_back_what_was_asked_for(where, ask):
    stopped.append(where)
    job = Booking(2)
    with pytest.raises(KeyboardInterrupt):
        ask(job)
    assert not job.active
    assert events == ["book 2", "free 2"]


def test_the_stop_button_leaves_what_was_there_before():
    Booking(2).state()
    job = Booking(2)
    stopped.append("state")
    with pytest.raises(KeyboardInterrupt):
        job.state()
    assert job.active
    assert events == ["book 2"]


def test_a_state_names_the_meshes_it_has():
    state = Booking(2).state(cached_path=None)
    with pytest.raises(AttributeError, match=r"'roof' is no host mesh .* \['room0', 'room1'\]"):
        state.roof
    assert state.dashboard_url is state.admin_url is state.telemetry_url is None
    assert state.query_engine is state.query_engine_client is None
    assert {"room0", "room1", "admin_url"} <= set(dir(state))


def test_the_next_run_finds_what_the_first_was_given():
    first = Booking(2)
    first.state()
    second = Booking(2)
    assert second.state().room0 == 0
    assert second.apply_id == first.apply_id
    assert events == ["book 2"]
    second.kill()
    assert events == ["book 2", "free 2"]


def test_a_saved_job_that_will_not_do_is_given_back():
    Booking(2).state()
    Booking(3).state()
    assert events == ["book 2", "free 2", "book 3"]
    assert job_load().rooms == 3


def test_without_a_path_nothing_is_saved(folder):
    Booking(1).state(cached_path=None)
    assert list(folder.iterdir()) == []


def test_a_job_travels_as_text(folder):
    job = Booking(2)
    job.apply()
    same = job_loads(job.dumps())
    assert (same.rooms, same.booked, same.apply_id) == (2, True, job.apply_id)
    job.dump("below/here.pkl")
    assert json.loads((folder / "below/here.pkl").read_text())["apply_id"] == job.apply_id
    assert job_load("below/here.pkl").can_run(Booking(2))


def test_dump_follows_a_link(folder):
    (folder / "link").symlink_to(folder / "target")
    Booking(2).dump("link")
    assert (folder / "link").is_symlink()
    assert job_load("target").rooms == 2


def test_an_attribute_that_is_no_text_is_named():
    job = Booking(2)
    job.door = object()
    with pytest.raises(TypeError, match="Booking cannot be saved: .*object is not JSON"):
        job.dumps()


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_a_folder_from_elsewhere_runs_nothing(folder, caplog):
    (folder / ".monarch").mkdir()
    (folder / DEFAULT_JOB_PATH).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="no job that monarch_nb has saved"):
        job_load()
    assert Booking(1).state().room0 == 0
    assert "is not used" in caplog.text
    record = json.loads(Booking(1).dumps()) | {"class": "os.system"}
    with pytest.raises(ValueError, match="it is a os.system: import that class first"):
        job_loads(json.dumps(record).encode())
    assert not (folder / "sprung").exists()


def test_monarchs_services_may_be_asked_for():
    job = Booking(1)
    assert job.enable_telemetry(TelemetryConfig(dashboard_port=0)) is job
    assert job.enable_telemetry(retention_secs=60, mesh_admin_config=MeshAdminConfig()) is job
    assert job.enable_admin(admin_addr="localhost:0") is job
    with pytest.raises(TypeError, match="no_such"):
        job.enable_telemetry(no_such=1)


# ------------------------------------------------------------------------------------ on this host


@pytest.mark.slow
def test_a_local_job_is_this_host():
    job = LocalJob(["trainers", "loaders"])
    state = job.state()
    assert state.trainers == state.loaders
    assert state.trainers.spawn_procs().execute(os.getppid).values() != [os.getpid()]
    shutdown_context().get(20)


def test_a_local_job_runs_a_script_by_itself(folder):
    (folder / "train.py").write_text("import os; print('step', os.environ['MONARCH_BATCH_JOB'])")
    job = LocalJob()
    with pytest.raises(ValueError, match="no client script"):
        job.process
    job.apply(client_script="train.py")
    assert job.process.wait(20) == 0
    [log] = folder.glob(".monarch/logs/job_*/stdout.log")
    assert log.read_text() == "step 1\n"
    job.kill()


CLIENT = """from monarch_nb.job import ProcessJob
print(sorted(ProcessJob({'described': 2}).state().all_meshes()))
"""


def test_a_client_script_has_the_hosts_that_it_was_started_for(folder):
    (folder / "train.py").write_text(CLIENT)
    job = LocalJob(["given"])
    job.apply(client_script="train.py")
    assert job.process.wait(30) == 0
    [log] = folder.glob(".monarch/logs/job_*/stdout.log")
    assert log.read_text() == "['given']\n"
    job.kill()


def test_hosts_saved_before_are_not_forgotten_for_those_of_a_client_script(folder):
    Booking(3).state()
    (folder / "train.py").touch()
    job = LocalJob()
    job.apply(client_script="train.py")
    assert job.process.wait(20) == 0
    assert events == ["book 3", "free 3"]
    job.kill()


def test_a_local_job_is_asked_for_in_the_next_run_too(folder, mesh_runtime):
    for _ in range(2):  # the second finds what the first has saved, and makes it anew
        state = LocalJob(hosts=("trainers",)).state()
        assert len(state.trainers) == 1


# ---------------------------------------------------------------- the job that a folder means

HOSTS = "from tests.control.jobs.test_jobs import Booking\njob = Booking(3)\nnumber = 3\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hosts_of_this.py").write_text(HOSTS)
    yield tmp_path
    sys.modules.pop("hosts_of_this", None)


def test_a_folder_remembers_its_job(place):
    set_current_job("hosts_of_this.job")
    job = load_current_job()
    assert (job.rooms, job.active) == (3, False)
    set_current_job("hosts_of_this.number")
    with pytest.raises(TypeError, match="hosts_of_this.number is no job, but of type int"):
        load_current_job()
    set_current_job("hosts_of_this.jop")
    with pytest.raises(AttributeError, match="module 'hosts_of_this' has no job 'jop'"):
        load_current_job()


def test_where_several_jobs_are_kept_the_linked_one_is_meant(place):
    set_current_job("hosts_of_this.number")
    (place / ".monarch/training").mkdir()
    (place / DEFAULT_JOB_PATH).symlink_to("training/state.pkl")
    with pytest.raises(FileNotFoundError):
        load_current_job()
    set_current_job("hosts_of_this.job")
    assert load_current_job().rooms == 3
    (place / DEFAULT_JOB_PATH).unlink()
    with pytest.raises(TypeError):
        load_current_job()


def test_a_folder_without_a_job_says_what_to_type(place):
    with pytest.raises(FileNotFoundError, match="Type: set_current_job"):
        load_current_job()
    for wrong in ("hosts", ".job", "hosts."):
        with pytest.raises(ValueError, match="names no job"):
            set_current_job(wrong)
    assert not (place / ".monarch").exists()
