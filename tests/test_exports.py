"""The public names are exactly those of public_names.txt, and each says what it is for."""

import inspect
from pathlib import Path

import pytest

import monarch_nb

LISTED = [
    line
    for line in Path(__file__).with_name("public_names.txt").read_text().split("\n")
    if line and not line.startswith("#")
]


def test_the_list_names_each_once():
    assert len(LISTED) == len(set(LISTED))


def test_all_is_exactly_the_list():
    exported = set(monarch_nb.__all__)
    assert exported == set(LISTED), {
        "exported, not listed": sorted(exported - set(LISTED)),
        "listed, not exported": sorted(set(LISTED) - exported),
    }
    assert len(monarch_nb.__all__) == len(exported)


def test_dir_shows_the_public_names():
    assert set(LISTED) <= set(dir(monarch_nb))


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        monarch_nb.no_such_name


def present() -> dict[str, object]:
    return {name: getattr(monarch_nb, name) for name in LISTED if hasattr(monarch_nb, name)}


def test_each_name_is_there():
    assert not set(LISTED) - present().keys()


def test_classes_and_functions_are_documented():
    bare = [
        name
        for name, value in present().items()
        if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value)
    ]
    assert not bare, f"no docstring: {bare}"


def test_each_class_is_final_or_made_for_subclasses():
    """A class that is neither would be subclassed by accident. Exceptions may always be."""
    neither = [
        name
        for name, value in present().items()
        if inspect.isclass(value)
        and not issubclass(value, BaseException)
        and not getattr(value, "__final__", False)
        and "subclass" not in (inspect.getdoc(value) or "").lower()
    ]
    assert not neither, f"decorate with typing.final, or say how to subclass: {neither}"
