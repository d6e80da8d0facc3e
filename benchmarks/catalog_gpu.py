"""What is measured on a GPU. Without one its rows say so."""

from benchmarks.targets import Measure, Row, Unit, at_least_part_of

GPU: tuple[Measure, ...] = (
    Measure(
        "gpu",
        (
            Row(
                "read",
                "RDMABuffer.read_into, 256 MB on a GPU, from another rank",
                Unit.BYTES_PER_SECOND,
                at_least_part_of("raw", "gpu", "read", 0.8),
            ),
            Row("read_64", "the same, 64 bytes", Unit.SECONDS),
            Row(
                "down",
                "the same, 256 MB from a GPU into main memory",
                Unit.BYTES_PER_SECOND,
                at_least_part_of("raw", "gpu", "down", 0.6),
            ),
            Row(
                "up",
                "the same, 256 MB from main memory to a GPU",
                Unit.BYTES_PER_SECOND,
                at_least_part_of("raw", "gpu", "up", 0.6),
            ),
            Row("argument", "256 MB argument on a GPU, arrives on it", Unit.BYTES_PER_SECOND),
            Row("moved", "256 MB by to_mesh between two ranks of a GPU", Unit.BYTES_PER_SECOND),
            Row("step", "call that adds on a GPU and returns the sum", Unit.SECONDS),
        ),
        ranks=2,
    ),
    Measure(
        "gpu_ranks",
        (
            Row("spawned", "8 ranks started on a host that has loaded torch", Unit.SECONDS),
            Row("ready", "the same, and each has used a GPU (raw: one process)", Unit.SECONDS),
            Row("freed", "stop of 8 ranks until the GPU's memory is free", Unit.SECONDS),
        ),
        ranks=8,
    ),
)
