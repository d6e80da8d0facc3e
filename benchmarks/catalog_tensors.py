"""What is measured of tensors on ranks, and what is aimed for."""

from benchmarks.targets import Measure, Row, Unit, at_least, at_most


def _against_spmd(name: str, what: str, limit: float) -> Measure:
    return Measure(
        name,
        (
            Row("time", what, Unit.SECONDS),
            Row(
                "ratio",
                "the same, times that of SPMD on the ranks",
                Unit.TIMES,
                at_most(name, "ratio", limit, f"<= {limit:g} x"),
            ),
        ),
        deadline_s=180,
        ranks=4,
    )


TENSORS: tuple[Measure, ...] = (
    Measure(
        "tensor_ops",
        (
            Row(
                "rate",
                "small operations issued to 4 ranks, until they have run",
                Unit.PER_SECOND,
                at_least("tensor_ops", "rate", 20_000, ">= 20 000/s"),
            ),
        ),
        deadline_s=180,
        ranks=4,
    ),
    _against_spmd("tensor_step", "a training step of 2 layers on 4 ranks, 4096 x 1024", 1.25),
    _against_spmd("tensor_matmul", "a product of distributed matrices, 4096 x 4096", 1.15),
)
