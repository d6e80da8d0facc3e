"""Large values, memory that others read, tensors of a mesh, collectives."""

from tests.soak.stage import RANKS, STEADY, Stage, lines_of, same

MB = 1 << 20
GROUP = "if not dist.is_initialized(): dist.init_process_group('gloo')"


def large_values(stage: Stage) -> None:
    size, value = stage.dice.choice([100_000, 2 * MB, 5 * MB]), stage.dice.randrange(256)
    stage.ok(f"large = numpy.full({size}, {value}, dtype=numpy.uint8)")
    found = stage.value(
        "[int(each.sum(dtype=int)) for each in steady_work.echo.call(large).get().values()]"
    )
    same(found, [size * value] * 2)
    stage.ok("steady['large'] = large")
    cell = stage.ok("%%mesh @steady\nint(large.sum(dtype=int))")
    same(lines_of(cell.shown), {rank: [str(size * value)] for rank in STEADY}, cell.shown)
    stage.ok("%%mesh @steady\ndel large")
    stage.ok("del large")


def memory_of_another(stage: Stage) -> None:
    size, value = stage.dice.choice([64, 3 * MB, 9 * MB]), stage.dice.randrange(200)
    one, other = stage.dice.sample(list(STEADY), 2)
    stage.ok(f"owner = steady_work.slice(gpus={one})")
    stage.ok(f"buffer = owner.offer.call_one({size}, {value}).get()")
    used = f"steady_work.slice(gpus={other}).use.call_one(buffer, {size}).get()"
    same(stage.value(used), size * value)
    same(stage.value("owner.held.call_one().get()"), size * (value + 1))
    stage.ok("owner.drop.call_one().get()")
    stage.fails(used, "not found")
    stage.ok("del owner, buffer")


def tensors(stage: Stage) -> None:
    n = stage.dice.randint(1, 50)
    stage.ok(
        f"with main.activate():\n    part = torch.ones(3, 4) * (main.rank_tensor('gpus') + {n})\n"
        "    whole = (part @ part.T).relu().reduce('gpus', 'sum')"
    )
    wanted = sum(4.0 * (rank + n) ** 2 for rank in RANKS)
    same(stage.value("inspect(whole, gpus=1).tolist()"), [[wanted] * 3] * 3)
    stage.ok("del part, whole")


def a_collective(stage: Stage) -> None:
    n = stage.dice.randrange(100)
    cell = stage.ok(
        f"%%mesh @main\nimport torch, torch.distributed as dist\n{GROUP}\n"
        f"t = torch.ones(1000) * (rank + {n})\ndist.all_reduce(t)\nint(t[7])"
    )
    same(lines_of(cell.shown), {rank: [str(6 + 4 * n)] for rank in RANKS}, cell.shown)


ACTS = {large_values: 3, memory_of_another: 3, a_collective: 4, tensors: 3}
WANT_TORCH = {a_collective, tensors}
