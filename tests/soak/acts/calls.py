"""Calls of actors, of every kind. Those of `steady` have counted all that was asked of them."""

from tests.soak.stage import RANKS, STEADY, Stage, label, same


def counts_on(stage: Stage) -> None:
    token, n = stage.new("add"), stage.dice.randrange(100)
    stage.counted += n
    kind = stage.dice.choice(["call", "stream", "await"])
    told = f"steady_work.add.call({token!r}, {n})"
    found = {
        "call": f"list({told}.get().values())",
        "stream": f"[each.get() for each in steady_work.add.stream({token!r}, {n})]",
        "await": f"list((await {told}).values())",
    }[kind]
    same(stage.value(found), [stage.counted] * 2, kind)
    stage.ledger.has_once(token, STEADY)


def one_or_any(stage: Stage) -> None:
    token, rank = stage.new("one"), stage.dice.choice(STEADY)
    one = f"steady_async.slice(gpus={rank}).add.call_one({token!r}, 5).get()"
    same(stage.value(one), 5 + rank)
    stage.ledger.has_once(token, [rank])
    token = stage.new("any")
    chosen = stage.value(f"steady_async.add.choose({token!r}, 5).get()")
    stage.ledger.has_once(token, [chosen - 5])


def broadcasts(stage: Stage) -> None:
    token, after = stage.new("cast"), stage.new("after")
    stage.counted += 4
    stage.ok(f"steady_work.add.broadcast({token!r}, 4)")
    found = stage.value(f"list(steady_work.add.call({after!r}, 0).get().values())")
    same(found, [stage.counted] * 2, "a call came before a broadcast that was sent before it")
    stage.ledger.has_once(token, STEADY)
    stage.ledger.has_once(after, STEADY)


def many_at_once(stage: Stage) -> None:
    count = stage.dice.choice([20, 100, 300])
    stage.ok(f"flying = [steady_work.echo.call(i) for i in range({count})]")
    found = stage.value("[list(each.get().values()) for each in flying]")
    same(found, [[i, i] for i in range(count)])
    stage.ok("del flying")


def fails(stage: Stage) -> None:
    ranks = stage.some(STEADY, most=2)
    cell = stage.fails(f"steady_work.fails.call({ranks}).get()", "ValueError: slip of")
    assert any(f"slip of {rank}" in cell.error for rank in ranks), cell.error
    same(stage.value("list(steady_work.fails.call([]).get().values())"), list(STEADY))


def through_a_port(stage: Stage) -> None:
    stage.ok("port, receiver = Channel.open()\nsteady_work.sends.broadcast(port)")
    same(sorted(stage.value("[receiver.recv().get(30) for _ in range(2)]")), list(STEADY))
    stage.ok("del port, receiver")


def spawns_and_stops(stage: Stage) -> None:
    token, name = stage.new("spawned"), stage.new("work")
    stage.ok(f"{name} = main.spawn({name!r}, Work, {stage.ledger.name!r})")
    same(stage.value(f"list({name}.add.call({token!r}, 3).get().values())"), [3] * 4)
    stage.ok(f"{name}.stop().get(60)\ndel {name}")
    stage.ledger.has_once(token, RANKS)


def spawns_a_mesh(stage: Stage) -> None:
    size = stage.dice.randint(1, 3)
    stage.ok(f"%mesh up --gpus {size} --name more --new")
    stage.ok("%%mesh @more\nrank")
    stage.says("%mesh down more\n%mesh use main", "is down")


def dies_in_a_call(stage: Stage) -> None:
    ranks, name = stage.some(), stage.new("work")
    stage.ok(f"{name} = main.spawn({name!r}, Work, {stage.ledger.name!r})")
    cell = stage.fails(f"{name}.dies.call({ranks}).get()", "the process this actor was running on")
    assert any(f"{label([rank])} " in cell.error for rank in ranks), cell.error
    stage.until_all_are_told_lost(ranks)  # the call has ended with the first
    stage.ok("%mesh heal main")
    token = stage.new("healed")
    same(stage.value(f"len({name}.add.call({token!r}, 1).get())"), 4)
    stage.ledger.has_once(token, RANKS)
    stage.ok(f"{name}.stop().get(60)\ndel {name}")
    stage.check_all_are_well()


ACTS = {
    counts_on: 8, one_or_any: 4, broadcasts: 3, many_at_once: 3, fails: 3, through_a_port: 3,
    spawns_and_stops: 3, spawns_a_mesh: 2, dies_in_a_call: 2,
}  # fmt: skip
