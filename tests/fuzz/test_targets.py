"""Each target on its corpus and on some hundred inputs; what makes the corpus is still accepted."""

import pickle

import pytest
from hypothesis import given, settings

from tests.fuzz.mutations import inputs
from tests.fuzz.targets import CORPUS, TARGETS, seeds

pytestmark = pytest.mark.filterwarnings("ignore")  # Python may warn of what people typed
FILES = [path for name in TARGETS for path in seeds(name)]
MOST_BYTES = 200_000  # of the corpus


@pytest.fixture(autouse=True)
def no_pickles(monkeypatch):
    """No target gets as far as unpickling, which would run what the bytes say."""
    reached = []
    monkeypatch.setattr(pickle, "loads", lambda *args, **_: reached.append(args))
    yield
    assert not reached


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_corpus_breaks_nothing(path):
    accepted = TARGETS[path.parent.name](path.read_bytes())
    assert accepted or not path.name.startswith("valid")


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_target(name):
    target = TARGETS[name]

    @settings(max_examples=100, database=None)
    @given(inputs([path.read_bytes() for path in seeds(name)]))
    def run(data):
        target(data)

    run()


def test_every_target_says_its_invariant():
    assert all((target.__doc__ or "").startswith("Any ") for target in TARGETS.values())


def test_the_corpus_is_small_and_of_targets_only():
    assert {path.name for path in CORPUS.iterdir()} == TARGETS.keys()
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES
