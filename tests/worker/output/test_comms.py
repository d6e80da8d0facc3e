"""What waits on a rank for its turn, and what leaves it."""

import json
import math

import numpy as np
import torch

from monarch_nb.core.wire.jsonable import as_json, jsonable
from monarch_nb.core.wire.messages.cells import WidgetMessage
from monarch_nb.worker.output.comms import _Incoming


def update(comm_id="a", **state):
    data = {"method": "update", "state": state}
    message = WidgetMessage("comm_msg", comm_id, data, {}, str(state))
    return _Incoming(lambda _: None, message, [])


def click(comm_id="a"):
    data = {"method": "custom", "content": 1}
    return _Incoming(lambda _: None, WidgetMessage("comm_msg", comm_id, data, {}, ""), [])


def test_updates_that_wait_become_one_with_the_last_values():
    first = update(value=1, step=2)
    assert first.absorb(update(value=3))
    assert first.message.data["state"] == {"value": 3, "step": 2}
    assert first.message.parent == "{'value': 3}"  # the browser waits for the echo of the last


def test_what_has_begun_or_belongs_to_another_widget_is_left_alone():
    begun = update(value=1)
    begun.has_begun = True
    assert not begun.absorb(update(value=2))
    assert not update(value=1).absorb(update("b", value=2))


def test_clicks_are_all_counted():
    assert not click().absorb(click())
    assert not click().absorb(update(value=1))
    assert not update(value=1).absorb(click())


def test_buffers_are_not_mixed():
    image = update(value=1)
    image.buffers = [b"x"]
    assert not update(value=1).absorb(image)
    assert not image.absorb(update(value=1))


def test_values_of_libraries_are_numbers_and_the_rest_is_text():
    said = json.loads(as_json({"a": np.int64(3), "b": np.float32(0.5), "c": {1, 2}, "d": math.nan}))
    assert said == {"a": 3, "b": 0.5, "c": "{1, 2}", "d": "NaN"}
    assert json.loads(as_json("NaN is a text")) == "NaN is a text"


def test_displays_are_json():
    shown = jsonable({"image/png": b"hi", "application/json": {"x": torch.float32, "y": -math.inf}})
    assert shown == {
        "image/png": "aGk=",
        "application/json": {"x": "torch.float32", "y": "-Infinity"},
    }
