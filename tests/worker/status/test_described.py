"""Variables are described without a line of the user's code."""

import math

import numpy as np
import pytest
import torch

from monarch_nb.core.wire.messages.status import ListVariables, Variable
from monarch_nb.worker.status.described import MAX_VARIABLES, Describer

RAN: list[str] = []


class Meta(type):
    def __eq__(cls, other: object) -> bool:
        RAN.append("__eq__ of a class")
        return True

    def __hash__(cls) -> int:
        RAN.append("__hash__ of a class")
        return 1

    def __getattribute__(cls, name: str) -> object:
        RAN.append(f"{name} of a class")
        return super().__getattribute__(name)


class Curious(metaclass=Meta):
    def __getattribute__(self, name: str) -> object:
        RAN.append(name)
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        RAN.append("__repr__")
        return "curious"

    def __len__(self) -> int:
        RAN.append("__len__")
        return 3


class Traced(torch.Tensor):
    @property
    def shape(self):
        RAN.append("shape")
        return super().shape

    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        RAN.append("__torch_function__")
        return super().__torch_function__(*args, **kwargs)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
        self.tied = self.first
        self.register_buffer("mean", torch.zeros(8))
        self.traced = torch.nn.Parameter(torch.zeros(2).as_subclass(Traced))

    def __getattr__(self, name: str) -> object:
        RAN.append(name)
        return super().__getattr__(name)

    def parameters(self, recurse: bool = True):
        RAN.append("parameters")
        return super().parameters(recurse)


def described(**names: object) -> dict[str, Variable]:
    found = Describer(lambda: names, frozenset({"rank"})).all(ListVariables())
    return {each.name: each for each in found.variables}


def test_no_code_of_the_users_runs():
    names = {"curious": Curious(), "traced": torch.zeros(3).as_subclass(Traced), "model": Model()}
    names |= {"objects": [Curious()], "array": np.array([Curious()], dtype=object)}
    RAN.clear()
    found = described(**names)
    assert RAN == []
    assert found["curious"].type.endswith("Curious")
    assert (found["traced"].type.rpartition(".")[2], found["traced"].shape) == ("Traced", None)
    assert (found["objects"].length, found["array"].dtype) == (1, "object")


@pytest.mark.parametrize(
    "value, told",
    [
        (torch.zeros(2, 3), {"shape": [2, 3], "dtype": "float32", "nbytes": 24, "device": "cpu"}),
        (
            torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)),
            {"shape": [4], "dtype": "bfloat16", "nbytes": 8, "device": "cpu"},
        ),
        (
            torch.zeros(5, device="meta"),
            {"shape": [5], "dtype": "float32", "nbytes": 20, "device": "meta"},
        ),
        (
            np.zeros((2, 2), "i8"),
            {"shape": [2, 2], "dtype": "int64", "nbytes": 32, "device": "cpu"},
        ),
        (3, {"value": "3"}),
        (True, {"value": "True"}),
        (None, {"value": "None"}),
        (math.nan, {"value": "nan"}),
        (1 << 5000, {"value": "5001 bits"}),
        ("x" * 100, {"length": 100, "value": f"'{'x' * 60}'..."}),
        ([1, 2], {"length": 2}),
        ({"a": 1}, {"length": 1}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_told_of_a_value(value, told):
    found = described(it=value)["it"]._asdict()
    assert {key: each for key, each in found.items() if each is not None} == {
        "name": "it",
        "type": found["type"],
        **told,
    }


def test_of_a_model_the_parameters_are_counted_once():
    found = described(model=Model())["model"]
    assert (found.parameters, found.nbytes) == (32, 16 * 4 + 16 * 2 + 8 * 4)
    assert (found.device, sorted(found.dtype.split(", "))) == ("cpu", ["bfloat16", "float32"])


def test_data_of_the_users_only():
    names = {"rank": 1, "_x": 1, "In": [], "math": math, "f": described, "C": Curious, "mine": 1}
    assert [*described(**names)] == ["mine"]


def test_the_newest_of_too_many():
    names = {f"x{number}": number for number in range(MAX_VARIABLES + 7)}
    found = Describer(lambda: names, frozenset()).all(ListVariables())
    assert (len(found.variables), found.left_out) == (MAX_VARIABLES, 7)
    assert {"x6", f"x{MAX_VARIABLES + 6}"} & {each.name for each in found.variables} == {
        f"x{MAX_VARIABLES + 6}"
    }
