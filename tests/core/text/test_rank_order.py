"""Lines that are shown at once stand in the order of ranks, those of one rank in their own."""

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.text.stream_folder import StreamFolder


def shown(said: list[tuple[int, str]]) -> str:
    folder = StreamFolder(range(4))
    texts = [one for rank, line in said for one in folder.feed(rank, "stdout", f"{line}\n", 0.0)]
    return "".join(text.text for text in [*texts, *folder.flush(1.0)])


def test_ranks_that_greet_in_any_order_are_shown_in_theirs():
    said = [(rank, line) for rank in (2, 0, 3, 1) for line in (f"hello {rank}", "together")]
    assert shown(said) == "[0] hello 0\n[1] hello 1\n[2] hello 2\n[3] hello 3\n[0-3] together\n"


def test_lines_of_a_rank_are_not_moved_past_each_other():
    assert shown([(3, "a"), (3, "b"), (1, "c")]) == "[3] a\n[1] c\n[3] b\n"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=30))
def test_each_rank_keeps_its_order_and_nothing_is_lost(said):
    found: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for line in shown(said).splitlines():
        label, text = line[1:].split("] ")
        for run in label.split(","):
            first, _, last = run.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                found[rank].append(text)
    for rank in range(4):
        assert found[rank] == [line for one, line in said if one == rank]
