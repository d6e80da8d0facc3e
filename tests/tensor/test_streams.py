"""Streams run beside each other, and what they lend each other is never read half changed."""

import gc

import pytest
import torch

from monarch_nb import RemoteException
from monarch_nb.tensor import (
    Stream,
    call_on_shard_and_fetch,
    coalescing,
    fetch_shard,
    get_active_stream,
    inspect,
    remote,
)
from monarch_nb.tensor.commands import borrows
from tests.support import eventually, until_exists
from tests.tensor.conftest import numbered

COMMS = Stream("comms")


@pytest.fixture(autouse=True)
def nothing_is_lent():
    yield

    def is_empty():
        gc.collect()
        return not borrows.watched

    eventually(is_empty)


@remote(propagate="inspect")
def wait_for(path):
    until_exists(path)


def test_what_is_made_on_a_stream_stays_there(mesh):
    assert get_active_stream() == Stream("main")
    with mesh.activate(), COMMS.activate():
        assert get_active_stream() == COMMS
        y = torch.zeros(2) + 1
    assert get_active_stream() == Stream("main")
    assert y.stream == (y * 2).stream == COMMS
    assert repr(COMMS) == "Stream('comms')"
    assert "stream 'comms'" in repr(y)
    assert inspect(y * 2, gpus=1).tolist() == [2, 2]


def test_streams_do_not_wait_for_each_other(mesh, tmp_path):
    x = numbered(mesh)
    with mesh.activate(), COMMS.activate():
        wait_for(str(tmp_path / "go"))
        late = torch.zeros(2)
    assert inspect(x, gpus=1).tolist() == [1, 1, 1]
    fetched = fetch_shard(late)
    assert not fetched.done()
    (tmp_path / "go").touch()
    assert fetched.get(10).tolist() == [0, 0]


def test_tensors_of_two_streams_do_not_mix(mesh):
    x = numbered(mesh)
    with mesh.activate(), COMMS.activate():
        y = torch.zeros(3)
    with pytest.raises(ValueError, match=r"stream 'comms'.*stream\.borrow\(t\)"):
        x + y


def test_to_another_stream_by_a_copy(mesh):
    x = numbered(mesh)
    y = x.to_mesh(mesh, stream=COMMS)
    x.zero_()
    assert y.stream == COMMS
    assert inspect(y, gpus=2).tolist() == [2, 2, 2]


def test_a_borrowed_tensor_is_the_same_memory(mesh):
    x = numbered(mesh)
    lent, loan = COMMS.borrow(x, mutable=True)
    with loan:
        lent.reduce_("gpus", "sum")
    assert inspect(x).tolist() == [6, 6, 6]


def test_its_stream_waits_for_the_end_of_a_borrow(mesh, tmp_path):
    x = numbered(mesh)
    lent, loan = COMMS.borrow(x, mutable=True)
    with mesh.activate(), COMMS.activate():
        wait_for(str(tmp_path / "go"))
    lent.add_(1)
    loan.drop()
    fetched = fetch_shard(x)
    assert not fetched.done()
    (tmp_path / "go").touch()
    assert fetched.get(10).tolist() == [1, 1, 1]


def test_while_it_may_be_changed_elsewhere_nobody_else_touches_it(mesh):
    x = numbered(mesh)
    view = x.view(3, 1)
    lent, loan = COMMS.borrow(x, mutable=True)
    for use in (
        lambda: x + 1,
        lambda: view.add_(1),
        lambda: x.reduce("gpus"),
        lambda: inspect(x),
        lambda: COMMS.borrow(x),
        lambda: Stream("third").borrow(view),
    ):
        with pytest.raises(ValueError, match=r"is lent to stream 'comms', which may change it"):
            use()
    loan.drop()
    assert inspect(x + 1, gpus=1).tolist() == [2, 2, 2]
    assert lent is not None


def test_while_it_is_read_elsewhere_nobody_changes_it(mesh):
    x = numbered(mesh)
    lent, loan = COMMS.borrow(x)
    other, second = Stream("third").borrow(x)
    assert inspect(x + 1, gpus=1).tolist() == inspect(lent + 1, gpus=1).tolist() == [2, 2, 2]
    for change in (lambda: x.add_(1), x[:1].zero_, lambda: x.reduce_("gpus")):
        with pytest.raises(ValueError, match="lent to stream '.*' to be read"):
            change()
    for change in (lambda: lent.add_(1), other[:1].zero_, lambda: lent.reduce_("gpus")):
        with pytest.raises(ValueError, match="was borrowed to be read"):
            change()
    loan.drop()
    with pytest.raises(ValueError, match="lent to stream 'third'"):
        x.add_(1)
    second.drop()
    assert inspect(x.add_(1), gpus=1).tolist() == [2, 2, 2]


def test_what_was_borrowed_is_of_no_use_afterwards(mesh):
    x = numbered(mesh)
    lent, loan = COMMS.borrow(x)
    view = lent.view(3, 1)
    loan.drop()
    loan.drop()
    for use in (lambda: lent + 1, lambda: view + 1, lambda: inspect(lent)):
        with pytest.raises(ValueError, match="the borrow has ended"):
            use()


def test_a_lent_tensor_outlives_its_name(mesh):
    x = numbered(mesh)
    lent, loan = COMMS.borrow(x * 2)
    gc.collect()
    assert inspect(lent, gpus=1).tolist() == [2, 2, 2]
    loan.drop()


def test_what_cannot_be_borrowed(mesh):
    x = numbered(mesh)
    with mesh.activate():
        w = torch.ones(3, requires_grad=True)
    with pytest.raises(TypeError, match=r"requires a gradient.*detach"):
        COMMS.borrow(w)
    with pytest.raises(TypeError, match="not list"):
        COMMS.borrow([x])
    with pytest.raises(ValueError, match=r"is on Stream\('main'\) already"):
        Stream("main").borrow(x)


def test_a_failure_is_lent_too(mesh):
    x = numbered(mesh)

    @remote(propagate=lambda t: t)
    def fail(t):
        raise ValueError("no")

    lent, loan = COMMS.borrow(fail(x))
    with loan, pytest.raises(RemoteException, match="no") as raised:
        inspect(lent + 1)
    assert raised.value.operation == "fail"
    assert inspect(x, gpus=1).tolist() == [1, 1, 1]


def test_seeding_is_not_repeated_for_another_stream(mesh):
    with mesh.activate():
        torch.manual_seed(3)
        first = inspect(torch.rand(2))
        with Stream("later").activate():
            inspect(torch.zeros(1))
        second = inspect(torch.rand(2))
    torch.manual_seed(3)
    assert first.tolist() == torch.rand(2).tolist()
    assert second.tolist() == torch.rand(2).tolist()


def test_coalescing_changes_nothing(mesh):
    with mesh.activate(), coalescing():
        x = torch.ones(2)
        for _ in range(10):
            x = x + 1
    assert inspect(x).tolist() == [11, 11]


# ------------------------------------------------------------------------------------------- drop


@remote(propagate="inspect")
def count():
    from monarch_nb.tensor.ranks.interpreter import here

    return sum(isinstance(each, torch.Tensor) for each in here.worker.interpreter.tensors.values())


def test_drop_frees_at_once(mesh):
    x = numbered(mesh)
    view = x.view(3, 1)
    with mesh.activate():
        before = call_on_shard_and_fetch(count).get()
        x.drop()
        x.drop()
        assert call_on_shard_and_fetch(count).get() == before - 1
    assert repr(x) == "Tensor(float32[3], dropped)"
    for use in (lambda: x + 1, lambda: inspect(x), lambda: x.reduce("gpus")):
        with pytest.raises(RuntimeError, match=r"this tensor was dropped"):
            use()
    assert inspect(view, gpus=1).tolist() == [[1], [1], [1]]


def test_reductions_of_two_streams_do_not_mix(mesh, tmp_path):
    """On ranks 0 and 1 the one comes first, on ranks 2 and 3 the other."""

    @remote(propagate="inspect")
    def late(path, ranks):
        from monarch_nb.tensor.ranks.interpreter import here

        if here.worker.rank in ranks:
            until_exists(path)

    x = numbered(mesh)
    with mesh.activate(), COMMS.activate():
        y = torch.ones(5, dtype=torch.float64)
    gate, other = tmp_path / "gate", tmp_path / "other"
    with mesh.activate():
        late(str(gate), [0, 1])
        with COMMS.activate():
            late(str(other), [2, 3])
    sums = fetch_shard(x.reduce("gpus")), fetch_shard(y.reduce("gpus"))
    gate.touch()
    other.touch()
    assert [each.get(10).tolist() for each in sums] == [[6] * 3, [4] * 5]
