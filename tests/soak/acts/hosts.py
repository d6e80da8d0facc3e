"""Hosts that come and go: workers that are attached, killed and offered again; hosts of a job."""

from tests import support
from tests.soak.stage import DEADLINE_S, Stage, lines_of, same


def attached_and_released(stage: Stage) -> None:
    """Two workers lend their hosts, and wait for the next who wants them."""
    workers = _offered(stage)
    _attach(stage, [each.address for each in workers])
    _work_there(stage)
    stage.ok("far.stop().get(60)\nfar_hosts.stop().get(60)")
    _forget(stage)
    for each in workers:
        support.eventually(
            lambda each=each: not support.descendants(each.process.pid) or _is_bare(each),
            DEADLINE_S,
            "what the host had started to end",
        )


def attached_and_ended(stage: Stage) -> None:
    """A host that is shut down ends its worker; another one comes in its place."""
    workers = _offered(stage)
    _attach(stage, [each.address for each in workers])
    _work_there(stage)
    stage.ok("far_hosts.shutdown().get(60)")
    _forget(stage)
    for each in workers:
        each.process.wait(DEADLINE_S)
        each.process.stdout.close()
        stage.world.workers.remove(each)


def a_worker_is_killed(stage: Stage) -> None:
    """Its ranks are lost, which the next cell says; the other host's go on."""
    workers = _offered(stage)
    _attach(stage, [each.address for each in workers])
    _work_there(stage)
    which = stage.dice.randrange(2)
    workers[which].kill()
    stage.world.workers.remove(workers[which])
    lost = [2 * which, 2 * which + 1]
    cell = stage.fails("%%mesh @far\nrank", f"ranks {lost[0]}-{lost[1]}: ")
    token = stage.new("rest")
    rest = [rank for rank in range(4) if rank not in lost]
    cell = stage.ok(f"%%mesh @far {rest[0]}-{rest[1]}\n{stage.mark(token)}\nrank")
    same(lines_of(cell.shown), {rank: [str(rank)] for rank in rest}, cell.shown)
    stage.ledger.has_once(token, rest)
    stage.ok("far.stop().get(60)\nfar_hosts.stop().get(60)")
    _forget(stage)


def of_a_job(stage: Stage) -> None:
    stage.ok("%mesh up --on processes --hosts 2 --gpus 1 --device cpu --name job --new")
    cell = stage.ok("%%mesh @job\nrank")
    same(lines_of(cell.shown), {0: ["0"], 1: ["1"]}, cell.shown)
    if stage.dice.random() < 0.5:
        stage.ok("%mesh scale job --hosts 3")
        cell = stage.ok("%%mesh @job\nrank")
        same(lines_of(cell.shown), {0: ["0"], 1: ["1"], 2: ["2"]}, cell.shown)
    stage.says("%mesh down job\n%mesh use main", "given back")


def _offered(stage: Stage):
    while len(stage.world.workers) < 2:
        stage.world.offer()
    return list(stage.world.workers)


def _attach(stage: Stage, addresses: list[str]) -> None:
    stage.ok(
        f"far_hosts = attach_to_workers(workers={addresses})\n"
        "far = far_hosts.spawn_procs(per_host={'gpus': 2}, name='far')\n"
        "far.initialized.get(60)\n%mesh use far"
    )


def _work_there(stage: Stage) -> None:
    token, n = stage.new("far"), stage.dice.randrange(100)
    cell = stage.ok(f"%%mesh @far\n{stage.mark(token)}\nrank + {n}")
    same(lines_of(cell.shown), {rank: [str(rank + n)] for rank in range(4)}, cell.shown)
    stage.ledger.has_once(token, range(4))
    token, name = stage.new("far"), stage.new("farwork")
    stage.ok(f"{name} = far.spawn({name!r}, Work, {stage.ledger.name!r})")
    same(stage.value(f"list({name}.add.call({token!r}, {n}).get().values())"), [n] * 4)
    stage.ledger.has_once(token, range(4))
    size = stage.dice.choice([1000, 3 << 20])
    stage.ok(f"sent = numpy.full({size}, {n}, dtype=numpy.uint8)")
    found = f"[int(each.sum(dtype=int)) for each in {name}.echo.call(sent).get().values()]"
    same(stage.value(found), [n * size] * 4)
    stage.ok(f"del sent, {name}")


def _forget(stage: Stage) -> None:
    stage.ok("%mesh use main\ndel far, far_hosts")


def _is_bare(worker) -> bool:
    return len(support.descendants(worker.process.pid)) <= 2


ACTS = {attached_and_released: 2, attached_and_ended: 1, a_worker_is_killed: 2, of_a_job: 1}
