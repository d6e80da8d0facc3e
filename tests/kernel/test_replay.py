"""Ranks that were started again get what cells have defined, with a real kernel."""

from tests.kernel.client import KernelClient


def test_a_healed_rank_runs_what_defines_and_nothing_else():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 3", timeout_s=60)
        kernel.ok("%%mesh\nimport math\nsteps = []")
        kernel.ok("%%mesh\ndef area(r):\n    return round(math.pi * r * r, 2)\nprint('defined')")
        kernel.ok("%%mesh\nfor _ in range(3):\n    steps.append(area(1))")
        kernel.ok("%%mesh 0\nonly = 'rank 0'")
        assert "SIGKILL" in kernel.run("%%mesh 2\nimport os\nos.kill(os.getpid(), 9)").error
        said = kernel.ok("%mesh heal").text()
        assert said == (
            "mesh0 is whole again: 3 ranks (gpus=3); rank 2 started again, with an empty "
            "namespace. %mesh replay 2-3 --ranks 2 runs there what cells have defined\n"
        )
        replay = kernel.ok("%mesh replay 2-3 --ranks 2").text()
        assert replay == "[2] defined\nIn[2-3] ran again on rank 2\n"
        assert kernel.ok("%%mesh\nlen(steps), area(2)").shown == (
            "[0-1] (3, 12.57)\n[2] (0, 12.57)\n"
        )
        again = kernel.ok("%mesh replay").text()
        assert again == (
            "no cell ran again; left out: In[4], with work, process groups, or names that no such "
            "cell defines. %mesh replay 4 runs that too\n"
        )
        assert kernel.ok("%mesh replay 4").text() == "In[4] ran again on rank 2\n"
        assert kernel.ok("%%mesh\nlen(steps)").shown == "[0-2] 3\n"
        assert "no rank lacks what it has run before" in kernel.run("%mesh replay").error
        kernel.ok("%mesh replay 5 --ranks 1-2")
        assert kernel.ok("%%mesh\nonly").shown == "[0-2] 'rank 0'\n"
        kernel.ok("%mesh down")


def test_all_ranks_are_restarted_and_an_error_ends_the_replay():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2", timeout_s=60)
        kernel.ok("%%mesh\nx = rank")
        kernel.ok("import os; os.environ['HAS_DATA'] = '1'")
        kernel.ok("%%mesh\ny = 1 / x if globals().get('again') else 2")
        kernel.ok("%%mesh\nz = x + y")
        assert "%mesh replay 2-5 --ranks 0-1 runs there" in kernel.ok("%mesh restart").text()
        kernel.ok("%%mesh\nagain = True")
        failed = kernel.run("%mesh replay")
        assert "rank 0: ZeroDivisionError" in failed.error
        assert "In[4]" in failed.shown
        assert "name 'z' is not defined" in kernel.run("%%mesh\nz").error
        kernel.ok("%mesh down")
