"""`monarch-nb run --on`: the meshes of the notebook are on hosts of that job."""

import pytest

from tests.batch.terminal import notebook, shown, typed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_meshes_that_name_no_hosts_are_on_those_of_the_run(folder):
    path = notebook(
        folder / "far.ipynb",
        "%mesh up --gpus 2",
        "mesh0.sizes",
        "%mesh up --on processes --hosts 3 --gpus 1 --name own",
        "own.sizes",
    )
    code, out, err = typed("run", path, "--on", "processes", "--hosts", "2")
    assert (code, err) == (0, ""), out
    output = folder / "far.run-1.ipynb"
    assert "4 ranks (hosts=2 gpus=2)" in shown(output, 0)
    assert shown(output, 1) == "{'hosts': 2, 'gpus': 2}\n"
    assert shown(output, 3) == "{'hosts': 3, 'gpus': 1}\n"


def test_a_profile_says_how_many_ranks_where_the_notebook_does_not(folder):
    profiles = folder / "config/monarch_nb/profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text('[pair]\non = "processes"\nhosts = 2\ngpus = 2\n')
    path = notebook(
        folder / "far.ipynb", "%mesh up", "mesh0.sizes", "%mesh up --new 1", "mesh1.sizes"
    )
    code, out, _ = typed("run", path, "--on", "pair")
    assert code == 0, out
    assert shown(folder / "far.run-1.ipynb", 1) == "{'hosts': 2, 'gpus': 2}\n"
    assert shown(folder / "far.run-1.ipynb", 3) == "{'hosts': 2, 'gpus': 1}\n"
