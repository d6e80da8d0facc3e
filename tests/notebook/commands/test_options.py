"""What may be typed after `%mesh`, and the one line that answers a mistake."""

import argparse
import inspect

import pytest

from monarch_nb.notebook import commands, options
from monarch_nb.notebook.commands import starting
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.extension import MeshMagics
from monarch_nb.notebook.jobs import where


def complaint(line: str) -> str:
    with pytest.raises(MagicError) as caught:
        command, chosen = commands.parse_line(line)
        if command is starting.UP:
            where.asked(chosen)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("line, sizes", [
    ("up --gpus 4", {"gpus": 4}),
    ("up gpus=4", {"gpus": 4}),
    ("up replicas=2 gpus=3", {"replicas": 2, "gpus": 3}),
    ("up replicas=2 --gpus 3 --name data", {"replicas": 2, "gpus": 3}),
])  # fmt: skip
def test_up_takes_axes_in_order(line, sizes):
    command, chosen = commands.parse_line(line)
    assert command is starting.UP
    assert where.asked(chosen).sizes == tuple(sizes.items())


def test_an_empty_line_is_status():
    assert commands.parse_line("  ")[0] is commands.COMMANDS["status"]


@pytest.mark.parametrize("line, wrong, instead", [
    ("up --gpus 0", "--gpus must be a whole number of at least 1, not '0'", "%mesh up --gpus 4"),
    ("up --gpus x", "--gpus must be a whole number of at least 1, not 'x'", "%mesh up --gpus 4"),
    ("up --gpus -1", "--gpus", "%mesh up --gpus 4"),
    ("up --gpus ²", "--gpus must be a whole number", "%mesh up --gpus 4"),
    ("up --gpus", "--gpus needs a value", "%mesh up --gpus 4"),
    ("up", "how many ranks", "%mesh up --gpus 4"),
    ("up gpus=0", "gpus= must be a whole number of at least 1", "%mesh up --gpus 4"),
    ("up gpus=4 --gpus 4", "gpus is given twice", "%mesh up --gpus 4"),
    ("up 4 2", "gpus is given twice", "%mesh up --gpus 4"),
    ("up 0", "gpus= must be a whole number of at least 1", "%mesh up --gpus 4"),
    ("up --gpus 4 --fast", "does not know --fast", "%mesh up --gpus 4"),
    ("up --gpus 4 --name 3x", "must be a word like mesh0, not '3x'", "%mesh up --gpus 4"),
    ("up --gpu 4", "does not know --gpu", "%mesh up --gpus 4"),
    ('up --name "x', "No closing quotation", "%mesh up --gpus 4"),
    ("strat", "no command 'strat'", "Did you mean %mesh sta"),
    ("Up", "no command 'Up'", "Did you mean %mesh up?"),
    ("start", "no command 'start'", "Did you mean %mesh up?"),
    ("stop", "no command 'stop'", "Did you mean %mesh down?"),
    ("up --gpus 100000000", "starts 4096 ranks at most, not 100000000", "%mesh up --gpus 4"),
    ("up\t--gpus\t0", "--gpus must be a whole number of at least 1", "%mesh up --gpus 4"),
    ("up --name class", "must be a word like mesh0, not 'class'", "%mesh up --gpus 4"),
    ("up --name print", "must be another word, print is Python's own", "%mesh up --gpus 4"),
    ("use", "%mesh use: needs MESH.", "%mesh use mesh0"),
    ("put x -t", "-t/--targets needs a value", "%mesh put x y"),
    ("auto maybe", "%mesh auto: does not know 'maybe'.", "%mesh auto on"),
    ("stacks x", "%mesh stacks: cannot read 'x'; ranks are given as", "%mesh stacks 3"),
    ("interrupt --kill 3-1", "cannot read '3-1'", "%mesh interrupt --kill 3"),
    ("interrupt --kill x", "cannot read 'x'", "%mesh interrupt --kill 3"),
    ("down a b", "does not know b", "%mesh down"),
])  # fmt: skip
def test_a_mistake_is_told_in_one_line_with_what_to_type(line, wrong, instead):
    text = complaint(line)
    assert wrong in text
    assert instead in text


@pytest.mark.parametrize("text, ranks", [("3", (3,)), ("0,2", (0, 2)), ("0-3", (0, 1, 2, 3)),
                                         ("0-1,4,1", (0, 1, 4))])  # fmt: skip
def test_ranks(text, ranks):
    assert options.ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "3-1", "1.5", "0:2",
                                  "0-99999999999"])  # fmt: skip
def test_what_is_no_list_of_ranks(text):
    with pytest.raises(argparse.ArgumentTypeError):
        options.ranks(text)


def test_a_command_behind_two_signs_is_told_as_such():
    with pytest.raises(MagicError) as caught:
        options.parse_cell(" up --gpus 4")
    assert str(caught.value) == (
        "'up' is a command of the line magic. Type: %mesh up --gpus 4 (one %)"
    )


def test_a_cell_is_not_kept_under_a_name_of_pythons():
    with pytest.raises(MagicError, match="-o/--out must be another word, print is Python's own"):
        options.parse_cell("-o print")


def test_the_help_knows_every_command_and_option():
    text = inspect.getdoc(MeshMagics.mesh)
    for name, command in commands.COMMANDS.items():
        assert command.usage[0][0].split()[0] == name
        for action in command.parser._actions:
            typed = [] if action.help == argparse.SUPPRESS else action.option_strings
            assert all(option in text for option in typed), action


def test_the_words_are_those_of_the_commands():
    assert tuple(commands.COMMANDS) == options.COMMANDS


@pytest.mark.parametrize("typed, selection, script", [
    ("train.py", [], ("train.py", [], False)),
    ("gpus=0:2 hosts=1 train.py --epochs 3 -m x", ["gpus=0:2", "hosts=1"],
     ("train.py", ["--epochs", "3", "-m", "x"], False)),
    ("0,2 --timeout 3 -a -o job -m pkg.train 'a b' {x} $y", ["0,2"],
     ("pkg.train", ["a b", "{x}", "$y"], True)),
    ("[0, 2] --name mesh1 ./0.py -1", ["[0,", "2]"], ("./0.py", ["-1"], False)),
    ("-1 all.py all", ["-1"], ("all.py", ["all"], False)),
])  # fmt: skip
def test_what_belongs_to_a_script(typed, selection, script):
    _, chosen = commands.parse_line(f"run {typed}")
    assert chosen.run.selection == selection
    assert (chosen.script.name, list(chosen.script.args), chosen.script.module) == script


@pytest.mark.parametrize("typed, said", [
    ("", "%mesh run: needs a script. Type: %mesh run train.py --epochs 3"),
    ("-m", "%mesh run: needs a module after -m."),
    ("--timeot 3 train.py", "%mesh run: does not know --timeot; did you mean --timeout?"),
    ("@a @b train.py", "%mesh run: is for one mesh, not for a and b."),
    ("'train.py", "%mesh run: No closing quotation."),
])  # fmt: skip
def test_no_script_that_could_be_run(typed, said):
    with pytest.raises(MagicError) as caught:
        commands.parse_line(f"run {typed}")
    assert str(caught.value).startswith(said)


def test_each_command_is_below_one_heading_of_the_help():
    named = [name for names in commands.GROUPS.values() for name in names]
    assert sorted(named) == sorted(commands.COMMANDS)
    text = commands.whole_help()
    for heading in commands.GROUPS:
        assert f"{heading}\n%mesh " in text
