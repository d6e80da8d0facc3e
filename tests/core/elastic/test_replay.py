"""Which cells a new process runs: those that define what a cell uses."""

import pytest

from monarch_nb.core.elastic.replay import names_of, wanted

CELLS = [
    "import torch",
    "from monarch_nb import elastic",
    "class Net(torch.nn.Module):\n    pass",
    "config = {}",
    "config['lr'] = 3",
    "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=config['lr'])",
    "for batch in range(100):\n    loss = model(batch)\n    loss.backward()\n    optimizer.step()",
    "def train_step(state):\n    loss = state.model(1)\n    return loss",
    "print(loss)",
]
LOOP = (
    "state = elastic.State(model=model, optimizer=optimizer)\n"
    "for state in elastic.run(state, until=10):\n    loss = train_step(state)\n    print(loss)"
)


def test_what_defines_is_run_and_training_is_not():
    assert wanted(CELLS, LOOP) == [0, 1, 2, 3, 4, 5, 7]


def test_what_makes_process_groups_is_run():
    cells = ["import torch.distributed as dist", "dist.init_process_group('gloo')", "print(1)"]
    assert wanted(cells, "x = 1") == [0, 1]


def test_a_cell_that_needs_what_was_trained_has_it():
    assert 6 in wanted(CELLS, "print(loss)")


def test_what_a_function_uses_may_be_defined_later():
    cells = [
        "def f():\n    return g()",
        "def g():\n    return 1",
        "def g():\n    return h",
        "h = 2",
    ]
    assert wanted(cells, "f()") == [0, 1, 2, 3]


def test_what_a_function_of_the_last_cell_uses_and_has_is_not_looked_for():
    cells = ["x = 1", "y = 2", "z = 3"]
    assert wanted(cells, "x = 4\ndef f(): return x + y\nz = 5") == [1]
    assert wanted(cells, "def f(): return x\nx = 4") == [0], "it may be called before"


@pytest.mark.parametrize(
    "code, defines, needs",
    [
        ("x = y", {"x"}, {"y"}),
        ("x = 1\nx + 1", {"x"}, set()),
        ("x += 1", {"x"}, {"x"}),
        ("import a.b, c as d\nfrom e import f as g", {"a", "d", "g"}, set()),
        ("from torch import *", {"*"}, set()),
        ("def f(a, *b, c=d, **e):\n    g = a\n    return g + h", {"f"}, {"d", "h"}),
        ("def f():\n    global x\n    x = 1", {"f", "x"}, set()),
        ("class A(B):\n    c = d\n    def e(self): return F", {"A"}, {"B", "d", "F"}),
        ("def f(): return g()\ndef g(): pass", {"f", "g"}, {"g"}),
        ("def f():\n    x = 1\n    def g(): return x + y\n    return g", {"f"}, {"y"}),
        ("class A:\n    def f(self): return A()", {"A"}, {"A"}),
        ("[a for a in b if a > c]", set(), {"b", "c"}),
        ("{k: v for k, v in items}", set(), {"items"}),
        ("f = lambda x, y=z: x + w", {"f"}, {"z", "w"}),
        ("a.b = 1\nc[0] = d", {"a", "c"}, {"a", "c", "d"}),
        ("a.b(1)", set(), {"a"}),
        ("with open(path) as file:\n    text = file.read()", {"file", "text"}, {"path"}),
        ("for i in n:\n    j = i\nelse:\n    k = j", {"i", "j", "k"}, {"n"}),
        ("try:\n    a\nexcept E as e:\n    b = e", {"e", "b"}, {"a", "E"}),
        ("x: int = y\nz: int", {"x"}, {"y"}),
        ("(y := f(x))", {"y"}, {"f", "x"}),
        ("%time x = 1", set(), set()),
        ("len(x)", set(), {"x"}),
    ],
)
def test_names(code, defines, needs):
    found = names_of(code)
    assert (set(found.defines), set(found.needs)) == (defines, needs)
