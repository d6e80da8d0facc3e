"""Cells on ranks, as somebody types them who explores."""

from tests import support
from tests.soak.stage import DEADLINE_S, RANKS, STEADY, Stage, label, lines_of, same

SELECTIONS = {
    "0,2": [0, 2], "1-3": [1, 2, 3], "[1,3]": [1, 3], "::2": [0, 2], "-1": [3],
    "gpus=0": [0], "gpus=1:3": [1, 2], "gpus=1::2": [1, 3],
}  # fmt: skip


def on_all(stage: Stage) -> None:
    token, a, b = stage.new("cell"), stage.dice.randrange(1000), stage.dice.randrange(1000)
    cell = stage.ok(f"%%mesh @main\n{stage.mark(token)}\nx = rank * {a} + {b}\nx")
    same(lines_of(cell.shown), {rank: [str(rank * a + b)] for rank in RANKS}, cell.shown)
    stage.ledger.has_once(token, RANKS)


def on_some(stage: Stage) -> None:
    token = stage.new("some")
    text, ranks = stage.dice.choice(list(SELECTIONS.items()))
    cell = stage.ok(f"%%mesh @main {text}\n{stage.mark(token)}\nrank, size")
    same(lines_of(cell.shown), {rank: [f"({rank}, 4)"] for rank in ranks}, cell.shown)
    stage.ledger.has_once(token, ranks)


def on_both_meshes(stage: Stage) -> None:
    first, second = stage.new("both"), stage.new("both")
    stage.ok(f"%%mesh @main --noblock -o both\n{stage.mark(first)}\nrank")
    cell = stage.ok(f"%%mesh @steady\n{stage.mark(second)}\nrank * 7")
    same(lines_of(cell.shown), {rank: [str(rank * 7)] for rank in STEADY}, cell.shown)
    same(stage.value("list(both.result().values())"), list(RANKS))
    stage.ok("del both")
    stage.ledger.has_once(first, RANKS)
    stage.ledger.has_once(second, STEADY)


def raises(stage: Stage) -> None:
    token, ranks = stage.new("raises"), stage.some(most=4)
    slip = f"slip {stage.made}"
    cell = stage.fails(
        f"%%mesh @main\n{stage.mark(token)}\nif rank in {ranks}: raise ValueError({slip!r})\nrank",
        f"{label(ranks)}: ValueError: {slip}",
    )
    others = [rank for rank in RANKS if rank not in ranks]
    same(lines_of(cell.shown), {rank: [str(rank)] for rank in others}, cell.shown)
    stage.ledger.has_once(token, RANKS)


def prints(stage: Stage) -> None:
    count = stage.dice.choice([10, 100, 400])
    cell = stage.ok(f"%%mesh @main\nfor i in range({count}): print('line', i, rank % 2)")
    said = lines_of(cell.text())
    for rank in RANKS:
        wanted = [f"line {i} {rank % 2}" for i in range(count)]
        assert said.get(rank) == wanted, f"lines of rank {rank}: {cell.text()[-2000:]}"


def in_the_background(stage: Stage) -> None:
    token, n = stage.new("behind"), stage.dice.randrange(1000)
    stage.ok(
        f"%%mesh @main --noblock -o behind\n{stage.mark(token)}\nimport time\n"
        f"for i in range(3): print('step', i); time.sleep(0.1)\nrank + {n}"
    )
    same(stage.value("1 + 1"), 2)
    same(stage.value("list(behind.result().values())"), [rank + n for rank in RANKS])
    stage.ok("del behind")
    stage.ledger.has_once(token, RANKS)


def moves_variables(stage: Stage) -> None:
    n = stage.dice.randrange(1000)
    stage.ok(f"sent = [{n} + i for i in range(4)]\n%mesh put sent --name main")
    stage.ok("%%mesh @main\ngot = sent[rank] * 2")
    stage.ok("brought = %mesh get got --name main")
    same(stage.value("list(brought.values())"), [2 * (n + i) for i in RANKS])
    stage.ok("del sent, brought")


def in_the_notebook(stage: Stage) -> None:
    n = stage.dice.randrange(1000)
    assert stage.ok(f"sum(range({n}))").shown == f"{sum(range(n))}\n"
    stage.fails(f"raise KeyError({n})", f"KeyError: {n}")


def draws_curves(stage: Stage) -> None:
    steps, n = stage.dice.randint(2, 30), stage.dice.randrange(1000)
    stage.ok(
        "%%mesh @steady\nfrom monarch_nb import log\n"
        f"for i in range({steps}): log(i, soak=i * 2 + rank + {n})"
    )
    wanted = [[rank, i, i * 2 + rank + n] for rank in STEADY for i in range(steps)]
    support.eventually(lambda: same(_last_run(stage), wanted) is None, DEADLINE_S, "the curve")


def _last_run(stage: Stage) -> list[list[float]]:
    stage.ok("table = steady.metrics()\ntable = table[table.run_number == table.run_number.max()]")
    rows = "sorted([int(r.rank), int(r.step), r.value] for r in table.itertuples())"
    return stage.value(rows)


ACTS = {
    on_all: 8, on_some: 6, on_both_meshes: 3, raises: 4, prints: 3, in_the_background: 3,
    moves_variables: 3, in_the_notebook: 3, draws_curves: 2,
}  # fmt: skip
