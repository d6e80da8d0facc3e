"""`monarch-nb apply | exec | shell | kill | context`: jobs that a process of their own holds."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from monarch_nb.control import cli
from monarch_nb.host.rundir import sweep_all
from tests.source import ROOT
from tests.support import descendants, eventually, is_running

COMMAND = [sys.executable, "-m", "monarch_nb.control.cli"]
TWO = ["--on", "processes", "--hosts", "2"]


@pytest.fixture(autouse=True)
def nothing_stays(folder, monkeypatch):
    """No job and no process of one is left after a test, and no file that names one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    pids = [json.loads(path.read_text())["pid"] for path in records(folder)]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not records(folder), 20)
    eventually(lambda: not any(map(is_running, pids)), 20)
    sweep_all()
    assert not pids, "the test has ended its jobs"


def records(folder):
    return sorted((folder / "keys/contexts").glob("*.json"))


def typed(*words, **options):
    """What is typed, to its end: exit code, output, errors."""
    done = subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False, **options
    )
    return done.returncode, done.stdout, done.stderr


def refused(*words):
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    assert err.startswith("monarch-nb: ")
    assert err.count("\n") == 1, err
    return err.removeprefix("monarch-nb: ").strip()


@pytest.mark.slow
def test_a_job_is_kept_used_and_ended(folder):
    code, out, err = typed("apply", *TWO)
    assert (code, err) == (0, "")
    assert out == "default is up (hosts: 2 hosts). Type: monarch-nb exec hostname\n"
    [record] = records(folder)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    said = json.loads(record.read_text())
    assert said["job"]["class"].endswith("JoiningProcesses")
    code, out, err = typed("exec", "-e", "COLOUR=green", "--", "sh", "-c", "echo $COLOUR >&2; pwd")
    assert (code, sorted(out.splitlines())) == (0, [f"[0] {folder}", f"[1] {folder}"])
    assert sorted(err.splitlines()) == ["[0] green", "[1] green"]
    script = folder / "train.py"
    script.write_text("import os, sys; print(os.environ['MONARCH_RANK_gpus'], sys.argv[1:])")
    code, out, _ = typed("exec", "--host", "1", "--per-host", "gpus=2", "train.py", "--lr", "1")
    assert (code, sorted(out.splitlines())) == (0, ["[0] 0 ['--lr', '1']", "[1] 1 ['--lr', '1']"])
    assert typed("exec", "sh", "-c", "exit 3")[0] == 3
    assert typed("context")[1] == "* default  --on processes --hosts 2  2/2 hosts\n"
    assert refused("shell", "1") == "it is this machine: open a terminal here"
    assert "there is no host 7: it has the hosts 0 to 1" in refused("shell", "7")
    assert "default is there already (--on processes --hosts 2). Type: monarch-nb kill" in refused(
        "apply", *TWO
    )
    below = descendants(said["pid"])
    assert len(below) > 2
    assert typed("kill")[:2] == (0, "default has ended, its hosts are given back\n")
    eventually(lambda: not any(map(is_running, [said["pid"], *below])), 20)
    assert not records(folder)
    assert typed("context")[1].startswith("no job is known. Type: monarch-nb apply --on")


@pytest.mark.slow
def test_a_job_of_a_file_and_one_of_a_profile(folder):
    (folder / "hosts.py").write_text(
        textwrap.dedent("""
        from monarch_nb.job import ProcessJob
        spec = ProcessJob({"trainers": 1, "loaders": 1}, env={"KIND": "mine"})
        """)
    )
    profiles = folder / "config/monarch_nb/profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text("[two]\non = 'processes'\nhosts = 2\n")
    assert typed("apply", "hosts.py:spec", "--name", "mine")[1].startswith(
        "mine is up (trainers: 1 hosts, loaders: 1 hosts)"
    )
    assert refused("exec", "hostname") == "which hosts? --mesh trainers or --mesh loaders"
    assert typed("exec", "--mesh", "loaders", "--", "sh", "-c", "echo $KIND")[1] == "mine\n"
    assert typed("apply", "--on", "two", "--hosts", "1", "--name", "other")[0] == 0
    assert typed("context")[1] == (
        f"  mine  {folder}/hosts.py:spec  2/2 hosts\n* other  --on processes --hosts 1  1/1 hosts\n"
    )
    assert typed("context", "use", "mine")[1].startswith("* mine")
    assert typed("exec", "--mesh", "trainers", "--kill", "true")[1].startswith("mine has ended")
    assert "there is no job 'mine'; known: other. Type: monarch-nb context" in refused("kill")
    assert typed("kill", "--name", "other")[0] == 0


@pytest.mark.slow
@pytest.mark.fault
def test_ctrl_c_ends_the_command_and_a_killed_holder_leaves_nothing(folder):
    assert typed("apply", *TWO)[0] == 0
    [record] = records(folder)
    pid = json.loads(record.read_text())["pid"]
    running = subprocess.Popen(
        [*COMMAND, "exec", "--", "sh", "-c", "echo there; exec sleep 1000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with running.stdout as out:
        assert "there" in out.readline()
        eventually(lambda: sleeping(pid), 20, "the shell, which says so before, is `sleep`")
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
    eventually(lambda: not sleeping(pid), 20)
    assert typed("exec", "true")[0] == 0, "the next is served"
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, below)), 20)
    assert "no job is known" in refused("exec", "true")
    assert not records(folder)


def sleeping(pid):
    return [each for each in descendants(pid) if cmdline(each).startswith("sleep")]


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.parametrize("words, said", [
    (["apply"], "name a file, as jobs.py, or an engine, as --on ssh:node1,node2"),
    (["apply", "nowhere.py"], "there is no file nowhere.py"),
    (["apply", "--on", "slrum"], "there is no engine or profile 'slrum'. Engines: processes, ssh"),
    (["apply", "--on", "ssh"], "--on ssh needs the names of hosts"),
    (["apply", "--on", "ray", "--time", "1"], "--time is an option of slurm, not of ray"),
    (["apply", "--on", "ssh:a,b", "--hosts", "3"], "How many hosts? Both 3 and 2 were asked for"),
    (["apply", *TWO, "--name", "a/b"], "'a/b' is no name of a job: letters, digits"),
    (["apply", *TWO, "--spares", "x"], "--spares x: how many hosts are to hold no ranks, as 1"),
    (["apply", "--on", "processes", "--hosts", "0"], "--hosts 0: write a number of at least 1"),
    (["apply", *TWO, "--hsots", "3"], "unrecognized arguments: --hsots. Type: monarch-nb --help"),
    (["aply"], "invalid choice: 'aply' (choose from"),
    (["exec"], "exec needs a command. Type: monarch-nb exec hostname"),
    (["exec", "hostname"], "no job is known. Type: monarch-nb apply --on ssh:node1,node2"),
    (["context", "use"], "which one? Type: monarch-nb context use NAME"),
    (["kill", "--name", "x"], "no job is known. Type: monarch-nb apply"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(words, said):
    assert said in refused(*words)


def test_a_file_without_a_job_or_with_a_mistake_is_said(folder):
    (folder / "none.py").write_text("job = 7")
    assert refused("apply", "none.py").endswith(
        "none.py has no job 'job', but 7. Write there: job = SlurmJob(...)"
    )
    (folder / "wrong.py").write_text("job = 1 / 0")
    assert refused("apply", "wrong.py") == "ZeroDivisionError: division by zero"


def test_a_record_that_others_could_write_or_that_is_none_is_not_used(folder, capsys):
    contexts = folder / "keys/contexts"
    contexts.mkdir(mode=0o700, parents=True)
    record = contexts / "default.json"
    record.write_text("{}")
    record.chmod(0o644)
    assert cli.main(["kill"]) == 2
    assert "must be yours and of mode 0600" in capsys.readouterr().err
    record.chmod(0o600)
    assert cli.main(["kill"]) == 2
    assert "no job is known" in capsys.readouterr().err
    assert not record.exists()


@pytest.mark.slow
def test_only_its_own_user_is_answered(folder):
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    assert typed("apply", *TWO)[0] == 0
    [record] = records(folder)
    run_dir = Path(json.loads(record.read_text())["run_dir"])
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    program = textwrap.dedent("""
        import os, socket, sys
        here = os.open(sys.argv[1], os.O_PATH)
        os.setuid(65534)
        os.fchdir(here)
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect("job")
            stream.sendall(b'{"do": "kill"}\\n')
            print(stream.recv(100))
    """)
    stranger = [sys.executable, "-c", program, str(run_dir)]
    done = subprocess.run(stranger, capture_output=True, text=True, check=False)
    assert done.stdout in ("", "b''\n")
    assert typed("exec", "true")[0] == 0, "nobody has ended it"
    assert typed("kill")[0] == 0
