"""What ranks have, described in the notebook, also while they are busy."""

from tests.kernel.client import KernelClient


def lines_of(cell) -> list[str]:
    """Its lines, with one space between words."""
    return [" ".join(line.split()) for line in cell.shown.splitlines()]


def test_variables_are_folded_over_ranks_and_differences_are_marked():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 4", timeout_s=60)
        assert kernel.ok("%mesh vars").shown == "mesh0: 0 variables\n"
        kernel.ok(
            "%%mesh\nimport torch\nmodel = torch.nn.Linear(64, 32)\nloss = 0.5 + rank\n"
            "x = torch.ones(3, 2 if rank == 3 else 1)\nif rank == 1:\n    only = 'here'"
        )
        table = kernel.ok("%mesh vars")
        assert lines_of(table)[0] == "mesh0: 4 variables, 3 differ"
        assert lines_of(table)[2:] == [
            "loss 0-3 float 0.5, 1.5, 2.5, ... differs",
            "model 0-3 Linear 2,080 parameters float32 cpu 8.1 KB",
            "only 1 str length 4 'here' differs: not on ranks 0,2-3",
            "x 0-2 Tensor [3, 1] float32 cpu 12 B differs",
            "3 Tensor [3, 2] float32 cpu 24 B",
        ]
        [html] = [each["data"]["text/html"] for each in table.contents("display_data")]
        assert "<td style='text-align:left'>only</td>" in html
        some = lines_of(kernel.ok("%mesh vars x loss --ranks 0-1"))
        assert some[2:] == [
            "x 0-1 Tensor [3, 1] float32 cpu 12 B",
            "loss 0-1 float 0.5, 1.5 differs",
        ]
        kernel.ok(
            "%%mesh\nimport numpy\nx[0, 0] = float('nan') if rank == 1 else 7\n"
            "big = numpy.arange(12).reshape(3, 4)\nwith torch.no_grad(): model.bias.zero_()\n"
            "for each in model.parameters(): each.data.fill_(-2)"
        )
        looked = lines_of(kernel.ok("%mesh vars x big model loss --stats"))[2:]
        assert looked == [
            "x 0-2 Tensor [3, 1] float32 cpu 12 B 1 to 7, mean 3, 1 to 1, mean 1, 1 NaN differs",
            "3 Tensor [3, 2] float32 cpu 24 B 1 to 7, mean 2",
            "big 0-3 ndarray [3, 4] int64 cpu 96 B 0 to 11, mean 5.5",
            "model 0-3 Linear 2,080 parameters float32 cpu 8.1 KB -2 to -2, mean -2",
            "loss 0-3 float 0.5, 1.5, 2.5, ... differs",
        ]
        assert "variables that are named" in kernel.run("%mesh vars --stats").error
        wrong = kernel.run("%mesh vars modle").error
        assert "no rank of mesh0 has a variable 'modle'; did you mean model?" in wrong
        assert "mesh0 has no rank 9" in kernel.run("%mesh vars --ranks 9").error
        busy = kernel.start("%%mesh --noblock\nimport time\ntime.sleep(60)")
        kernel.finish(busy)
        assert "loss" in kernel.ok("%mesh vars").shown, "while all are busy"
        kernel.ok("%mesh down")
