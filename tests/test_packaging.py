"""What `pip install` brings: the packages, the kernelspec and its logos, one version everywhere."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import jupyterlab
import pytest
import yaml

import monarch_nb
from tests.source import ROOT

SPEC = ROOT / "kernel/spec"
SPEC_FILES = {"kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kernelspecs(**environment: str) -> dict[str, dict]:
    program = [sys.executable, "-m", "jupyter", "kernelspec", "list", "--json"]
    return json.loads(run(*program, **environment))["kernelspecs"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built as `pip install .` does, but with the hatchling of this environment: no network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_one_version_everywhere():
    package = json.loads((ROOT / "package.json").read_text())
    assert PROJECT["version"] == package["version"] == monarch_nb.__version__


def test_the_kernelspec_starts_the_monarch_kernel():
    spec = json.loads((SPEC / "kernel.json").read_text())
    assert spec["argv"][0] == "python"  # Jupyter puts its own interpreter there
    assert spec["argv"][-4:] == ["-m", "monarch_kernel", "-f", "{connection_file}"]
    assert spec["display_name"] == "Monarch"
    assert spec["interrupt_mode"] == "message"
    assert spec["metadata"] == {
        "debugger": True,
        "monarch": True,
        "supported_encryption": ["curve"],
    }


@pytest.mark.parametrize("size", [32, 64])
def test_logos_have_the_size_of_their_name(size):
    header = (SPEC / f"logo-{size}x{size}.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert header[16:24] == size.to_bytes(4) + size.to_bytes(4)


@pytest.mark.slow
def test_the_wheel_carries_kernel_and_kernelspec(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    spec = f"monarch_nb-{PROJECT['version']}.data/data/share/jupyter/kernels/monarch/"
    assert {name.removeprefix(spec) for name in names if name.startswith(spec)} == SPEC_FILES
    assert "monarch_nb/__init__.py" in names
    assert "monarch_nb/host/agent/agent.py" in names
    assert "monarch_kernel/__main__.py" in names
    tops = {name.split("/")[0] for name in names}
    start_file = "monarch_nb_compat.pth"
    assert {top for top in tops if ".d" not in top} == {"monarch_nb", "monarch_kernel", start_file}
    assert not [name for name in names if name.endswith(".pth") and name != start_file]


@pytest.mark.slow
def test_the_wheel_installs_its_kernelspec(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # Without --ignore-installed, pip would uninstall the project from this very environment.
    where = ["--ignore-installed", "--prefix", tmp_path]
    run(*pip, "install", "--quiet", "--no-deps", *where, wheel)
    found = kernelspecs(JUPYTER_PATH=str(tmp_path / "share/jupyter"))
    folder = Path(found["monarch"]["resource_dir"])
    assert folder.is_relative_to(tmp_path)
    assert {path.name for path in folder.iterdir()} == SPEC_FILES


def test_this_environment_lists_the_kernel():
    found = kernelspecs()
    assert found["monarch"]["spec"] == {
        **found["monarch"]["spec"],
        **json.loads((SPEC / "kernel.json").read_text()),
    }, "the installed kernelspec is stale: run `make test` again, or `pip install -e .`"


EXTENSION = "share/jupyter/labextensions/monarch-nb/"


def test_the_wheel_carries_the_extension_once(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    data = f"monarch_nb-{PROJECT['version']}.data/data/{EXTENSION}"
    carried = {name.removeprefix(data) for name in names if name.startswith(data)}
    assert {"package.json", "install.json", "static/style.js"} <= carried
    assert [name for name in carried if name.startswith("schemas/")]
    assert not [name for name in carried if name.endswith((".map", "build_log.json"))], (
        "a development build"
    )
    assert not [name for name in names if name.startswith("monarch_nb/labextension")]


def test_the_extension_loads_quickly(wheel):
    with zipfile.ZipFile(wheel) as carried:
        scripts = [
            one
            for one in carried.infolist()
            if f"{EXTENSION}static/" in one.filename and one.filename.endswith(".js")
        ]
    with_the_page = [one for one in scripts if "/static/later-" not in one.filename]
    size = sum(one.file_size for one in with_the_page)
    assert 0 < len(with_the_page) < len(scripts)
    assert size <= 120 * 1024, f"{size / 1024:.1f} KiB of JavaScript"


def test_the_extension_fits_every_jupyterlab_from_the_oldest_on():
    """JupyterLab refuses an extension that wants later parts than it has, or one version only."""
    wanted = json.loads((ROOT / "package.json").read_text())["dependencies"]
    assert {name: one for name, one in wanted.items() if not one.startswith("^")} == {}
    [oldest] = [one for one in PROJECT["dependencies"] if one.startswith("jupyterlab>=")]
    page = json.loads((Path(jupyterlab.__file__).parent / "static/package.json").read_text())
    behind = minor(jupyterlab.__version__) - minor(oldest.partition(">=")[2])
    of_the_oldest = {  # the parts are released together, each with a number of its own
        name: minor(page["resolutions"][name]) - behind
        for name in wanted
        if name.startswith("@jupyterlab/")
    }
    assert {name: minor(wanted[name]) for name in of_the_oldest} == of_the_oldest


BY_CONDA = {"torch": "pytorch", "fastjsonschema": "python-fastjsonschema"}


def test_the_conda_recipe_wants_what_pip_does():
    recipe = yaml.safe_load((ROOT / ".ci/conda/recipe.yaml").read_text())
    assert recipe["context"]["version"] == PROJECT["version"]
    wanted = [one for one in recipe["requirements"]["run"] if not one.startswith(("__", "python "))]
    of_pip = [re.fullmatch(r"([\w-]+)(.*)", one).groups() for one in PROJECT["dependencies"]]
    assert wanted == [f"{BY_CONDA.get(name, name)} {version}" for name, version in of_pip]


def minor(version: str) -> int:
    """5 of `^4.5.0`."""
    return int(version.partition(",")[0].split(".")[1])


@pytest.mark.slow
def test_jupyterlab_accepts_the_extension_of_the_wheel(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    where = ["--ignore-installed", "--prefix", tmp_path]
    run(*pip, "install", "--quiet", "--no-deps", *where, wheel)
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter", "labextension", "list"],
        env={**os.environ, "JUPYTER_PATH": str(tmp_path / "share/jupyter"), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where it lists them
        text=True,
        check=True,
    ).stdout
    below = listed.partition(f"{tmp_path}/share/jupyter/labextensions\n")[2]
    line = re.sub("\x1b\\[\\d+m", "", below.splitlines()[0]).strip()
    assert line == f"monarch-nb v{PROJECT['version']} enabled OK (python, monarch_nb)"


def test_the_lock_file_names_no_host():
    assert "://" not in (ROOT / ".yarn.lock").read_text()
