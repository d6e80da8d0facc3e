"""Stacks of many ranks as one tree: what is shared is said once, and nothing is lost."""

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.hangs.stack_tree import Node, Stack, lines, tree
from monarch_nb.core.hangs.stacks import Frame, is_whole, of_user

frames = st.builds(Frame, st.sampled_from("ab"), st.integers(1, 2), st.just("f"))
stacks = st.builds(Stack, st.sampled_from(["", "x", "y"]), st.lists(frames, max_size=4).map(tuple))
ranks = st.dictionaries(st.integers(0, 9), st.lists(stacks, max_size=3), max_size=6)

F, G, H = (Frame("a.py", line, name) for line, name in ((1, "f"), (2, "g"), (3, "h")))


def drawn(root: Node) -> list[tuple[tuple[int, ...], int, str]]:
    return [
        (
            line.ranks,
            line.depth,
            "-" if line.ends else line.node.frame.function if line.node.frame else line.node.thread,
        )
        for line in lines(root)
    ]


def paths(node: Node, rank: int, before: tuple = ()) -> list[tuple]:
    """The ways of a rank from the root down to where its calls end."""
    if rank not in node.ranks:
        return []
    here = (*before, node.thread or node.frame) if node.thread or node.frame else before
    below = [path for child in node.children for path in paths(child, rank, here)]
    return below or [here]


@given(ranks)
def test_every_stack_of_every_rank_is_a_way_down(found):
    root = tree(found)
    for rank, of_rank in found.items():
        ways = paths(root, rank)
        wanted = {((each.thread, *each.frames) if each.thread else each.frames)
                  for each in of_rank if each.frames}  # fmt: skip
        assert {way for way in ways if way} <= wanted  # no call that nobody made
        # a stack that is the beginning of another one of the same thread is part of that one
        assert all(any(way[: len(one)] == one for way in ways) for one in wanted)


@given(ranks)
def test_ranks_only_part(found):
    def check(node: Node) -> None:
        deeper = {rank for child in node.children for rank in child.ranks}
        assert {*node.ending, *deeper} == {*node.ranks}
        assert deeper.isdisjoint(node.ending)
        names = [(child.thread, child.frame) for child in node.children]
        assert len(names) == len(set(names))
        for child in node.children:
            assert set(child.ranks) <= set(node.ranks)
            check(child)

    root = tree(found)
    assert root.ranks == tuple(sorted(found))
    check(root)


def test_a_chain_stays_at_one_depth_and_parting_ranks_go_deeper():
    found = {0: [Stack("", (F, G))], 1: [Stack("", (F, G))], 2: [Stack("", (F, H, G))], 3: []}
    assert drawn(tree(found)) == [
        ((0, 1, 2), 0, "f"),
        ((0, 1), 1, "g"),
        ((2,), 1, "h"),
        ((2,), 1, "g"),
        ((3,), 0, "-"),
    ]


def test_a_rank_that_stays_where_others_go_deeper_is_named():
    found = {0: [Stack("", (F,))], 1: [Stack("", (F, G))]}
    assert drawn(tree(found)) == [((0, 1), 0, "f"), ((1,), 1, "g"), ((0,), 1, "-")]


def test_other_threads_come_behind_the_main_one_under_their_names():
    found = {0: [Stack("", (F,)), Stack("actor a", (G,))]}
    assert drawn(tree(found)) == [((0,), 0, "f"), ((0,), 0, "actor a"), ((0,), 0, "g")]


def test_a_tree_is_plain_data():
    assert tree({0: [Stack("", (F,))], 2: [Stack("t", (G,))]}).to_json() == {
        "ranks": "0,2",
        "children": [
            {"ranks": "0", "frame": {"file": "a.py", "line": 1, "function": "f"}, "children": []},
            {"ranks": "2", "thread": "t", "children": [
                {"ranks": "2", "frame": {"file": "a.py", "line": 2, "function": "g"},
                 "children": []},
            ]},
        ],
    }  # fmt: skip


MAIN = """Thread 0x00000000000000a0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "work.py", line 7 in beside
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00000000000000b0 (most recent call first):
  File "/usr/lib/python3.11/json/decoder.py", line 9 in decode
  File "train.py", line 41 in step
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


def test_the_main_thread_comes_first_though_it_is_written_last():
    assert of_user(MAIN) == [
        (0, (Frame("train.py", 41, "step"),
             Frame("/usr/lib/python3.11/json/decoder.py", 9, "decode"))),
        (0xA0, (Frame("work.py", 7, "beside"),
                Frame("/usr/lib/python3.11/threading.py", 320, "wait"))),
    ]  # fmt: skip


@given(st.integers(0, len(MAIN) - 1))
def test_what_is_cut_anywhere_is_not_whole(end):
    assert is_whole(MAIN)
    assert not is_whole(MAIN[:end])
