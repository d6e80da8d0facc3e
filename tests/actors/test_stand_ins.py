"""Tests of programs: an actor class that another one stands in for."""

import asyncio

import pytest

from monarch_nb import Actor, ActorError, endpoint, this_proc
from monarch_nb.actors.stand_ins import patch_actor

pytestmark = pytest.mark.usefixtures("mesh_runtime")


class Learner(Actor):
    def __init__(self, rate):
        self.rate = rate

    @endpoint
    async def step(self):
        return "learned", self.rate


class Quick(Learner):
    @endpoint
    async def step(self):
        return "quick", self.rate


class Quickest(Learner):
    @endpoint
    async def step(self):
        return "quickest", self.rate


def main():
    learner = this_proc().spawn("learner", Learner, rate=3)
    answer = learner.step.call_one().get(20)
    learner.stop().get(20)
    return answer


async def main_async():
    learner = this_proc().spawn("learner", Learner, rate=3)
    answer = await learner.step.call_one()
    await learner.stop()
    return answer


def test_in_a_block():
    with patch_actor(Learner, Quick) as mock:
        assert mock is Quick
        assert main() == ("quick", 3)
        with patch_actor(Learner, Quickest):
            assert main() == ("quickest", 3)
        assert main() == ("quick", 3)
    assert main() == ("learned", 3)


def test_as_a_decorator():
    @patch_actor(Learner, Quick)
    def quick():
        return main(), asyncio.run(quick_async())

    @patch_actor(Learner, Quickest)
    async def quick_async():
        return await main_async()

    assert quick() == (("quick", 3), ("quickest", 3))
    assert quick() == (("quick", 3), ("quickest", 3))
    assert main() == ("learned", 3)


def test_an_asynchronous_block_that_fails_ends_too():
    async def fail():
        async with patch_actor(Learner, Quick):
            assert await main_async() == ("quick", 3)
            raise KeyError("out")

    with pytest.raises((KeyError, ActorError)):
        asyncio.run(fail())
    assert main() == ("learned", 3)
