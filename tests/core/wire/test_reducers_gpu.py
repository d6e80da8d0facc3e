"""Tensors on a GPU are pickled with their memory out of band, and come back to it."""

import pickle

import pytest
import torch

from monarch_nb.core.wire import pickling, reducers

pytestmark = pytest.mark.gpu


def there_and_back(value):
    """The value as it arrives, and how many bytes travelled out of band."""
    buffers: list[pickle.PickleBuffer] = []
    payload = pickling.dumps(value, buffers)
    raws = [bytearray(each.raw()) for each in buffers]
    return pickling.loads(payload, raws), sum(map(len, raws))


@pytest.mark.parametrize("take", [lambda t: t, lambda t: t.T, lambda t: t[1:3, ::2]])
def test_a_tensor_comes_back_to_the_gpu(take):
    tensor = take(torch.arange(4000.0, device="cuda").reshape(40, 100)).requires_grad_()
    back, size = there_and_back(tensor)
    assert back.device == tensor.device
    assert back.requires_grad
    assert torch.equal(back, tensor)
    assert size <= 1.25 * tensor.nbytes


def test_one_of_a_gpu_that_is_not_here_comes_to_the_current_one():
    build, (buffer, *how, number) = reducers.reduce_tensor(torch.ones(3, device="cuda"))
    assert number == 0
    assert build(buffer, *how, 7).device.index == torch.cuda.current_device()


def test_large_ones_too():
    tensor = torch.ones((1 << 28) + 8, dtype=torch.uint8, device="cuda")
    back, size = there_and_back(tensor)
    assert torch.equal(back, tensor)
    assert size == tensor.nbytes
