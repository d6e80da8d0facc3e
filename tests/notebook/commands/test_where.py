"""Which hosts `%mesh up --on` asks for, as it is read; profiles; how each engine's job is made."""

import sys
from types import ModuleType

import pytest

from monarch_nb.control import engines
from monarch_nb.control.engines import ENGINES, Wanted
from monarch_nb.control.jobs.here import JoiningProcesses
from monarch_nb.job import SSHJob
from monarch_nb.notebook import commands
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.jobs import where

H100 = """
[h100x4]
on = "slurm"
hosts = 4
gpus = 8
time = "4:00:00"
partition = "h100"
args = ["--constraint=ib"]
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch):
    """Write the file of profiles: `profiles(text)`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "monarch_nb/profiles.toml"
    path.parent.mkdir()
    return path.write_text


def asked(line):
    return where.asked(commands.parse_line(f"up {line}")[1])


def refused(line):
    with pytest.raises(MagicError) as caught:
        asked(line)
    return str(caught.value)


@pytest.mark.parametrize("line, sizes, wanted", [
    ("--on ssh:node1,node2 --gpus 8", {"gpus": 8}, Wanted("ssh", ("node1", "node2"), 2, 8)),
    ("--on ssh:a 4 -- -F 'my config'", {"gpus": 4},
     Wanted("ssh", ("a",), 1, 4, (), ("-F", "my config"))),
    ("--on processes --hosts 4 gpus=2", {"gpus": 2}, Wanted("processes", (), 4, 2)),
    ("hosts=4 gpus=2 --on processes", {"gpus": 2}, Wanted("processes", (), 4, 2)),
    ("--on slurm --hosts 4 gpus=4 replicas=2 --time 4:00:00 --account A -- --constraint=ib",
     {"gpus": 4, "replicas": 2},
     Wanted("slurm", (), 4, 8, (("time", "4:00:00"), ("account", "A")), ("--constraint=ib",))),
    ("--on slurm 4 --device cpu", {"gpus": 4}, Wanted("slurm", (), 1, 0)),
    ("--on ssh:a,b --spares 1 2", {"gpus": 2},
     Wanted("ssh", ("a", "b"), 2, 2, (("spares", "1"),))),
    ("--on slurm --hosts 4 --spares 1 --min-hosts 3 2", {"gpus": 2},
     Wanted("slurm", (), 4, 2, (("spares", "1"), ("min-hosts", "3")))),
    ("--on k8s --namespace ml --image IMG 1", {"gpus": 1},
     Wanted("k8s", (), 1, 1, (("namespace", "ml"), ("image", "IMG")))),
    ("hosts=2 gpus=2", {"hosts": 2, "gpus": 2}, None),
])  # fmt: skip
def test_what_is_asked_for(line, sizes, wanted):
    found = asked(line)
    assert (found.sizes, found.hosts) == (tuple(sizes.items()), wanted)


@pytest.mark.parametrize("line, said", [
    ("--on slrum 4", ("There is no engine or profile 'slrum'. Did you mean slurm? Engines: "
     "processes, ssh, slurm, k8s, ray; profiles of ")),
    ("--on ssh 4", "--on ssh needs the names of hosts. Type: %mesh up --on ssh:node1,node2"),
    ("--on ray:a 4", "--on ray chooses its hosts itself. Type: %mesh up --on ray"),
    ("--on ssh:a,b --hosts 3 4", "How many hosts? Both 3 and 2 were asked for"),
    ("--on slurm --hosts 2 hosts=3 4", "How many hosts? Both 2 and 3 were asked for"),
    ("--on ray --time 3 4", "--time is an option of slurm, not of ray"),
    ("--on processes --min-hosts 1 4", "--min-hosts is an option of ssh, slurm, k8s, ray, not of"),
    ("--on ssh:a --image X 4", "--image is an option of k8s, not of ssh"),
    ("--on k8s --namespace ml 4", "--on k8s needs --image. Type: %mesh up --on k8s"),
    ("--on ray 4 -- --x", "--on ray takes nothing behind --, which was '--x'"),
    ("--on ssh:a 4 --device cuda", "--device cuda is for ranks of this machine"),
    ("--on slurm --hosts 2", "%mesh up: needs to know how many ranks each host has"),
    ("4 --time 3", "%mesh up: takes --time with --on ENGINE only"),
    ("4 --hosts 2", "%mesh up: takes --hosts with --on ENGINE only"),
    ("4 -- x", "%mesh up: takes -- with --on ENGINE only"),
    ("--on processes --hosts 1000 5", "%mesh up: starts 4096 ranks at most, not 5000"),
    ("--on slurm --hosts 0 4", "%mesh up: --hosts must be a whole number of at least 1"),
    ("--on slurm --partitoin x 4", "does not know --partitoin; did you mean --partition?"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(line, said):
    text = refused(line)
    assert said in text
    assert "\n" not in text


# ----------------------------------------------------------------------------------------- profiles


def test_a_profile_stands_for_its_options(profiles):
    profiles(H100)
    given = (("time", "4:00:00"), ("partition", "h100"))
    words = ("--constraint=ib",)
    assert asked("--on h100x4") == asked(
        "--on slurm --hosts 4 --gpus 8 --time 4:00:00 --partition h100 -- --constraint=ib"
    )
    assert asked("--on h100x4 --hosts 2 gpus=4 -- --nice").hosts == Wanted(
        "slurm", (), 2, 4, given, (*words, "--nice")
    )


@pytest.mark.parametrize("text, line, said", [
    (H100, "--on h100x8", ("'h100x8'. Did you mean h100x4? Engines: processes, ssh, slurm, k8s, "
     "ray; profiles of {}: h100x4")),
    ("[a]\nhosts = 2", "--on a 4", "profile 'a' of {} names no engine. Write there: on = "),
    ("[a]\non = 'slurm'\npartitoin = 'x'", "--on a 4",
     "profile 'a' of {} has the unknown option partitoin; did you mean partition?"),
    ("[a]\non = 'slurm'\nname = 'x'", "--on a 4", "profile 'a' of {} has the unknown option name"),
    ("[a]\non = 'slurm'\ntime = true", "--on a 4", "time must be a text or a whole number, not"),
    ("[a]\non = 'slurm'\nargs = 'x'", "--on a 4", "args must be a list of texts"),
    ("[a]\non = 'b'\n[b]\non = 'slurm'", "--on a 4", "There is no engine or profile 'b'"),
    ("[a", "--on a 4", "{} cannot be read: "),
])  # fmt: skip
def test_a_profile_that_makes_no_sense(profiles, tmp_path, text, line, said):
    profiles(text)
    assert said.format(tmp_path / "monarch_nb/profiles.toml") in refused(line)


def test_an_engine_is_never_a_profile_and_no_folder_has_profiles(profiles, tmp_path, monkeypatch):
    profiles("[slurm]\non = 'ssh:evil'\n")
    assert asked("--on slurm 4").hosts.engine == "slurm"
    here = tmp_path / "foreign"
    here.mkdir()
    (here / "monarch_nb.toml").write_text(H100)
    (here / "profiles.toml").write_text(H100)
    monkeypatch.chdir(here)
    assert "no engine or profile 'h100x4'" in refused("--on h100x4")


# ---------------------------------------------------------------------------------- jobs of engines


class Recorded:
    """In the place of a class of jobs: what it was made with."""

    def __init__(self, *args, **kwargs):
        self.made = (args, kwargs)
        self.meshes = []

    def add_mesh(self, *args, **kwargs):
        self.meshes.append((args, kwargs))


@pytest.fixture
def recorded(monkeypatch):
    for name, classes in {
        "slurm.slurm_job": ["SlurmJob"],
        "kubernetes.kubernetes_job": ["KubernetesJob", "ImageSpec"],
        "ray.ray_job": ["RayJob"],
    }.items():
        module = ModuleType(name)
        vars(module).update(dict.fromkeys(classes, Recorded))
        monkeypatch.setitem(sys.modules, f"monarch_nb.control.jobs.{name}", module)


def made(line):
    return engines.make("mesh0", asked(line).hosts)


def test_slurm_is_asked_in_its_words(recorded):
    line = (
        "--on slurm --hosts 4 --gpus 8 --time 4:00:00 --partition h100 --qos Q -- --constraint=ib"
    )
    assert made(line).made == ((), {
        "meshes": {"mesh0": 4}, "gpus_per_node": 8, "slurm_args": ["--constraint=ib"],
        "time_limit": "4:00:00", "partition": "h100", "qos": "Q",
    })  # fmt: skip
    some = made("--on slurm --hosts 4 --spares 1 --min-hosts 3 8").made[1]
    assert (some["meshes"], some["spares"], some["min_hosts"]) == ({"mesh0": 4}, 1, 3)
    plain = made("--on slurm 8 --device cpu --python /opt/py").made[1]
    assert (plain["gpus_per_node"], plain["python_exe"]) == (None, "/opt/py")


def test_kubernetes_and_ray_are_asked_in_their_words(recorded):
    job = made("--on k8s --hosts 2 --gpus 4 --namespace ml --image IMG")
    assert job.made == ((), {"namespace": "ml"})
    [(args, kwargs)] = job.meshes
    assert (args, kwargs["num_replicas"]) == (("mesh0",), 2)
    assert kwargs["image_spec"].made == (("IMG",), {"resources": {"nvidia.com/gpu": 4}})
    few = made("--on k8s --hosts 2 --spares 1 --min-hosts 1 --namespace ml --image IMG 1")
    assert (few.made[1]["min_hosts"], few.meshes[0][1]["spares"]) == (1, 1)
    some = made("--on ray --hosts 2 --spares 1 --min-hosts 1 4").made[1]
    assert (some["spares"], some["min_hosts"]) == (1, 1)
    ray = made("--on ray --hosts 2 --gpus 4 --address head:6379")
    assert ray.made == (({"mesh0": 2},), {"num_gpus": 4, "address": "head:6379"})


def test_jobs_that_need_nothing_more():
    assert isinstance(made("--on processes --hosts 2 4"), JoiningProcesses)
    job = made("--on ssh:node1,node2 --gpus 4 --python /opt/py -- -F config")
    assert isinstance(job, SSHJob)
    assert job.script().splitlines()[1:] == [
        "ssh -T -o BatchMode=yes -o ExitOnForwardFailure=no -R 127.0.0.1:PORT:127.0.0.1:PORT "
        f"-F config {node} '/opt/py -P -m monarch_nb.host.join --index {index}'"
        for index, node in enumerate(["node1", "node2"])
    ]


def test_spares_are_beside_the_hosts_of_the_mesh():
    job = made("--on processes --hosts 1 --spares 1 2")
    assert job.state(cached_path=None).mesh0.sizes == {"hosts": 1}
    job.kill()
    with pytest.raises(ValueError, match="spares=2 of 2 hosts"):
        made("--on ssh:a,b --spares 2 4")
    with pytest.raises(ValueError, match="--spares one: how many hosts"):
        made("--on ssh:a,b --spares one 4")
    with pytest.raises(ValueError, match="--min-hosts 3: 1 to 2, as so many are asked for"):
        made("--on ssh:a,b --min-hosts 3 4")


@pytest.mark.parametrize(
    "engine, package",
    [("slurm", "monarch_nb"), ("k8s", "monarch_nb[k8s]"), ("ray", "monarch_nb[ray]")],
)
def test_an_engine_that_is_not_installed_says_what_to_type(monkeypatch, engine, package):
    for name in ("slurm.slurm_job", "kubernetes.kubernetes_job", "ray.ray_job"):
        monkeypatch.setitem(sys.modules, f"monarch_nb.control.jobs.{name}", None)
    with pytest.raises(ValueError, match=f"--on {engine}: .*Job is not installed here") as said:
        ENGINES[engine].make("mesh0", Wanted(engine, options=(("namespace", "ml"),)))
    assert str(said.value).endswith(f'Type: pip install --upgrade "{package}"')
