"""The notebook on reinforcement learning: the policy learns, also when a generator dies."""

import re

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "rl_loop.ipynb"

pytestmark = pytest.mark.timeout(2 * reading.LIMIT_S)


def test_the_reward_rises(shown):
    text = shown("for number, mean in enumerate")
    rewards = [float(each) for each in re.findall(r"mean reward (\d\.\d\d)", text)]
    assert len(rewards) == 8
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.9


def test_weights_go_from_memory_to_memory(shown):
    assert re.fullmatch(r"\d+ bytes of weights, read by cma\n", shown("Generator, weights)"))


def test_a_dead_generator_is_named_and_comes_back(shown):
    assert re.match(r"RankExited - .* fault\.strike\(\) .* code 3\n", shown("class Fault"))
    said = r"RankExited - .* generators\.generate\(\) .* rank 1 .* code 3\n"
    gone_on = r"mean reward (0\.9\d|1\.00)\nlearned: True\n"
    assert re.fullmatch(said + gone_on, shown("processes.heal()"))


def test_the_policy_counts(shown):
    lines = shown("for prompt in range(NUMBERS)").splitlines()
    right = [
        f"{prompt} -> {' '.join(str((prompt + step) % 8) for step in range(1, 5))}"
        for prompt in range(8)
    ]
    assert sum(line == wanted for line, wanted in zip(lines, right, strict=True)) >= 7


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed)
