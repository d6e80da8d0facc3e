"""Completions and help in cells of ours, over a fake runtime: what is asked of whom, and what is
answered when nobody can be asked."""

import pytest
from IPython.core.completer import provisionalcompleter

from monarch_nb.core.wire.messages.cells import Completions, Help, Inspect, Match
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.notebook import commands
from monarch_nb.notebook.commands.command import Command
from monarch_nb.notebook.completion.mesh_words import MeshLine, RankCode, place_of
from monarch_nb.notebook.completion.seen_names import SeenNames, token
from monarch_nb.notebook.extension import load_ipython_extension, unload_ipython_extension
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import session_of
from tests.notebook.fake_client import Done, FakeControl, install


class RankHelp:
    """Ranks that know some names, until they are held."""

    def __init__(self):
        self.names = {"model": "instance", "modulus": "function"}
        self.asked = []
        self.held = []
        self.is_held = False

    def __call__(self, rank, request, late):
        self.asked.append((rank, request))
        if self.is_held:
            self.held.append(late)
            return None
        if isinstance(request, Inspect):
            return Help(f"help of rank {rank}")
        begin = request.code[: request.cursor].split()[-1].rpartition(".")[2]
        found = [Match(name, request.cursor - len(begin), request.cursor, kind)
                 for name, kind in self.names.items() if name.startswith(begin)]  # fmt: skip
        return Completions(found, self.names)

    @property
    def ranks(self):
        return [rank for rank, _ in self.asked]


class Kernel:
    def do_inspect(self, *_):
        return "the kernel's"


@pytest.fixture
def fake(shell) -> FakeControl:
    load_ipython_extension(shell)
    made = install(shell)
    made.helps = RankHelp()
    return made


@pytest.fixture
def up(shell, fake) -> RankHelp:
    """A mesh of two hosts with two ranks each, as mesh0."""
    session_of(shell).meshes.keep("mesh0", fake.spawn({"hosts": 2, "gpus": 2}, "mesh0"))
    return fake.helps


def complete(shell, cell, cursor=None):
    with provisionalcompleter():
        offset = len(cell) if cursor is None else cursor
        return list(shell.Completer.completions(cell, offset))


def texts(shell, cell, cursor=None):
    return [found.text for found in complete(shell, cell, cursor)]


# ------------------------------------------------------------------------------------------ places


@pytest.mark.parametrize("cell, cursor, expected", [
    ("%%mesh\nmod", 10, RankCode("", "mod", 7, 3)),
    ("\n\n%%px gpus=0\na\nmod", 19, RankCode(" gpus=0", "a\nmod", 14, 5)),
    ("%%mesh\n", 7, RankCode("", "", 7, 0)),
    ("%%mesh gp\nmod", 9, MeshLine(True, " gp", 6)),
    ("%%mesh gpus=0", 9, MeshLine(True, " gp", 6)),
    ("%%me", 4, None),
    ("%%meshes\nmod", 12, None),
    ("%mesh st", 8, MeshLine(False, " st", 5)),
    ("x = 1\n  %mesh st\ny", 16, MeshLine(False, " st", 13)),
    ("x = 1\n%mesh st\ny", 16, None),
    ("%px mod", 7, RankCode("", "mod", 4, 3)),
    ("'😀'\n%px mod\nx", 11, RankCode("", "mod", 8, 3)),
    ("mod", 3, None),
    ("%%time\n%%mesh\nmod", 17, None),
])  # fmt: skip
def test_where_the_cursor_is(cell, cursor, expected):
    assert place_of(cell, cursor, lambda _: None) == expected


@pytest.mark.parametrize("code, expected", [
    ("mod", ("", "mod")),
    ("x = model.we", ("model", "we")),
    ("a.b.", ("a.b", "")),
    ("f(größ", ("", "größ")),
    ("", ("", "")),
    ("import to", None),
    ("from a import b", None),
    ("%ti", None),
    ("open('da", None),
    ("f().da", None),
    ("table['x'].da", None),
])  # fmt: skip
def test_what_is_being_typed(code, expected):
    assert token(code, len(code)) == expected


def test_names_that_occur():
    seen = SeenNames()
    seen.learn(
        "import torch\nfor step in range(9):  # a comment\n    loss = model.train.now(x) + 'text'"
    )
    assert set(seen.of("")) == {"torch", "step", "range", "loss", "model", "x"}
    assert seen.of("model") == ["train"]
    assert seen.of("model.train") == ["now"]
    seen.learn("after = f(")
    seen.learn("%timeit wide")
    assert {"after", "f"} <= set(seen.of(""))
    assert seen.of("")[0] == "wide"


# ------------------------------------------------------------------------------------- from ranks


@pytest.mark.slow  # jedi, for the cell of the controller
def test_ranks_complete_what_they_will_run(shell, up):
    shell.user_ns["module_here"] = 1
    [model, modulus] = complete(shell, "%%mesh\n'😀'; mod")
    assert (model.text, model.start, model.end, model.type) == ("model", 12, 15, "instance")
    assert modulus.text == "modulus"
    assert texts(shell, "%%mesh\nnothing_like_it") == []
    assert "module_here" in texts(shell, "mod")


@pytest.mark.parametrize("line, rank", [
    ("", 0), (" gpus=1", 1), (" hosts=1 gpus=0", 2), (" 2,3", 2), (" --name mesh0 3", 3),
    (" @mesh0 3", 3), (" nonsense", 0), (" --nonsense", 0), (" 'open", 0),
])  # fmt: skip
def test_the_first_rank_of_the_cell_is_asked(shell, up, line, rank):
    complete(shell, f"%%mesh{line}\nmod")
    assert up.ranks == [rank]


def test_lost_ranks_are_not_asked(shell, fake, up):
    fake.lost_ranks = [0, 1]
    assert texts(shell, "%%mesh\nmod") == ["model", "modulus"]
    assert texts(shell, "%%mesh gpus=1\nmod") == ["model", "modulus"]
    fake.lost_ranks = [0, 1, 2, 3]
    assert texts(shell, "%%mesh\nmod") == ["model", "modulus"]  # as they were known
    assert up.ranks == [2, 3]


def test_ranks_that_come_up_are_not_asked(shell, up, monkeypatch):
    """They answer when they are up; until then each press of Tab would wait for them in vain."""
    monkeypatch.setattr(Done, "done", lambda _: False)
    assert texts(shell, "%%mesh\nmod") == []
    monkeypatch.undo()
    assert up.ranks == []
    assert texts(shell, "%%mesh\nmod") == ["model", "modulus"]


def test_every_cell_is_completed_by_ranks_with_auto_on(shell, up):
    session_of(shell).auto.turn("gpus=1")
    assert texts(shell, "mod") == ["model", "modulus"]
    assert up.ranks == [1]
    assert "model" not in texts(shell, "%%local\nmod")
    assert texts(shell, "%mesh stat") == ["status"]


def test_names_of_the_cell_itself_complete_before_it_has_run(shell, up):
    cell = "%%mesh\nmod_new = 1\nmod"
    assert texts(shell, cell) == ["model", "modulus", "mod_new"]
    assert texts(shell, "%%mesh\nimport mod_new\nimport mod") == ["model", "modulus"]


def test_help_comes_from_ranks(shell, up):
    shell.kernel = kernel = Kernel()
    unload_ipython_extension(shell)
    load_ipython_extension(shell)
    fake = install(shell)
    fake.helps = up
    session_of(shell).meshes.keep("mesh0", fake.spawn({"gpus": 2}, "mesh0"))
    found = kernel.do_inspect("%%mesh gpus=1\nmodel", 17, 1)
    assert found["data"] == {"text/plain": "help of rank 1"}
    assert up.asked[-1][1] == Inspect("model", 3, 1)
    assert "%mesh up --gpus 4" in kernel.do_inspect("%mesh up", 8)["data"]["text/plain"]
    assert kernel.do_inspect("model", 3, 0, ()) == "the kernel's"
    unload_ipython_extension(shell)
    assert kernel.do_inspect("%%mesh\nmodel", 9) == "the kernel's"


# -------------------------------------------------------------------------- when nobody can answer


def test_without_a_mesh_cells_that_were_typed_are_all_there_is(shell, fake):
    assert texts(shell, "%%mesh\nmod") == []
    shell.run_cell("%%mesh\nmodern = kept.attribute")  # refused: there is no mesh
    assert texts(shell, "%%mesh\nmod") == ["modern"]
    assert texts(shell, "%%mesh\nkept.a") == ["attribute"]
    assert texts(shell, "%%mesh\nkep.a") == []


def test_a_rank_that_owes_an_answer_is_not_waited_for_again(shell, up):
    assert texts(shell, "%%mesh 0\nmod") == ["model", "modulus"]
    up.is_held = True
    for _ in range(3):
        assert texts(shell, "%%mesh 0\nmod") == ["model", "modulus"]
    assert up.ranks == [0, 0]
    up.is_held, [late] = False, up.held
    late(Completions([], {"modified": "instance"}))
    assert texts(shell, "%%mesh 0\nmod") == ["model", "modulus"]
    assert up.ranks == [0, 0, 0]


def test_late_answers_are_kept_and_other_ranks_are_asked_meanwhile(shell, up):
    up.is_held = True
    assert texts(shell, "%%mesh\nmod") == []
    up.held[0](Completions([], {"modified": "instance"}))
    up.held.clear()
    assert texts(shell, "%%mesh\nmod") == ["modified"]
    up.is_held = False
    assert texts(shell, "%%mesh\nmod") == ["model", "modulus"]
    assert up.ranks == [0, 0, 1]


def test_a_rank_that_dies_meanwhile_owes_nothing(shell, up):
    up.is_held = True
    complete(shell, "%%mesh 0\nmod")
    up.is_held, [late] = False, up.held
    late(Refused("process 7 was killed by SIGKILL"))
    assert texts(shell, "%%mesh 0\nmod") == ["model", "modulus"]


# -------------------------------------------------------------------------------------- magic lines


@pytest.mark.parametrize("typed, expected", [
    ("%mesh sta", ["status", "stacks"]),
    ("%mesh use ", ["mesh0"]),
    ("%mesh status me", ["mesh0"]),
    ("%mesh down --", ["--all", "--kept"]),
    ("%mesh up --nam", ["--namespace", "--name"]),
    ("%mesh up --on s", ["ssh", "slurm"]),
    ("%mesh up --on slurm --par", ["--partition"]),
    ("%mesh script --on ", ["processes", "ssh", "slurm", "k8s", "ray"]),
    ("%mesh jo", ["jobs"]),
    ("%mesh doctor ", ["mesh0"]),
    ("%mesh up g", ["gpus="]),
    ("%mesh auto o", ["on", "off"]),
    ("%mesh auto on gpus=1:", ["gpus=1:2"]),
    ("%mesh restart 0,", ["0,0", "0,1", "0,2", "0,3"]),
    ("%mesh restart --name ", ["mesh0"]),
    ("%mesh interrupt --kill 0,1", ["0,1"]),
    ("%mesh nonsense ", []),
    ("%mesh?", []),
    ("%%mesh --no", ["--noblock", "--no-stream", "--no-fail-fast"]),
    ("%%mesh --timeout ", []),
    ("%%mesh --name ", ["mesh0"]),
    ("%%mesh @", ["@mesh0"]),
    ("%%mesh @mesh0 h", ["hosts="]),
    ("%%mesh gp", ["gpus="]),
    ("%%mesh hosts=0 gpus=", ["gpus=0", "gpus=1", "gpus=0:", "gpus=1:"]),
    ("%%mesh gpus=0:", ["gpus=0:1", "gpus=0:2"]),
    ("%%mesh nodes=", []),
    ("%%mesh 0-", ["0-0", "0-1", "0-2", "0-3"]),
    ("%%mesh --targets ", ["0", "1", "2", "3"]),
    ("%%px a", ["all"]),
])  # fmt: skip
def test_words_of_the_magics(shell, up, typed, expected):
    found = complete(shell, f"{typed}\nx", len(typed))
    assert [each.text for each in found] == expected
    assert {each.end for each in found} <= {len(typed)}
    assert all(each.text.startswith(typed[each.start : each.end]) for each in found)
    assert up.asked == []


def test_magic_lines_without_a_mesh(shell, fake):
    assert texts(shell, "%mesh use ") == []
    assert "all" in texts(shell, "%%mesh ")
    assert texts(shell, "%%mesh gpus=") == []


def test_variables_that_a_command_moves(shell, up, monkeypatch):
    for word in ("put", "get"):
        parser = Parser(f"%mesh {word}", f"%mesh {word} x")
        parser.add_argument("names", nargs="+")
        monkeypatch.setitem(commands.COMMANDS, word, Command(parser, print, ((word, "move"),)))
    shell.user_ns["model_here"] = 1
    assert texts(shell, "%mesh put model_h") == ["model_here"]
    assert texts(shell, "%mesh get mod") == []
    complete(shell, "%%mesh\nmod")
    assert texts(shell, "%mesh get mod") == ["model", "modulus"]
    assert texts(shell, "%mesh get model mod") == ["model", "modulus"]


def test_completion_changes_nothing(shell, fake, up):
    shell.user_ns["mine"] = 1
    session_of(shell).meshes.pick("mesh0").stop().get()
    before = dict(shell.user_ns)
    assert texts(shell, "%%mesh\nmod") == []
    assert texts(shell, "%mesh use ") == []
    assert shell.user_ns == before


def test_unloading_gives_the_completer_back(shell):
    before = shell.Completer.completions
    load_ipython_extension(shell)
    unload_ipython_extension(shell)
    assert shell.Completer.completions == before
