"""Part A, `logging_option`: what ranks print reaches the client once, labelled or aggregated."""

import asyncio
import logging
import sys

import pytest

from monarch_nb import Actor, current_rank, endpoint, this_host
from tests import support


class Speaker(Actor):
    @endpoint
    def say(self, *lines):
        for line in lines:
            print(line.replace("RANK", str(current_rank().rank)))

    @endpoint
    def log(self, level, text):
        logging.getLogger("tests.speaker").log(level, text)

    @endpoint
    def warn(self, text):
        print(text, file=sys.stderr)


@pytest.fixture
def speakers(mesh_runtime):
    mesh = this_host().spawn_procs({"gpus": 3}, name="choir")
    yield mesh, mesh.spawn("speaker", Speaker)
    mesh.stop().get()


def option(mesh, **options):
    asyncio.run(mesh.logging_option(**options))


def test_output_is_shown_with_its_rank(speakers, capfd):
    _, speaker = speakers
    speaker.say.call("hello from RANK").get()
    shown = []

    def all_said():
        shown.extend(capfd.readouterr().out.splitlines())
        return len(shown) == 3

    support.eventually(all_said)
    assert sorted(shown) == [f"[choir {i}] hello from {i}" for i in range(3)]


def test_a_window_without_streaming_is_refused(speakers):
    with pytest.raises(
        RuntimeError, match="cannot set aggregate window without streaming to client"
    ):
        option(speakers[0], aggregate_window_sec=3)


def test_similar_lines_are_aggregated_and_shown_once(speakers, capfd):
    mesh, speaker = speakers
    option(mesh, stream_to_client=True, aggregate_window_sec=0.3)
    speaker.say.call("step 1 of RANK", "step 2 of RANK").get()
    speaker.warn.call("careful").get()
    shown = []

    def window_closed():
        captured = capfd.readouterr()
        shown.append((captured.out, captured.err))
        return any("<<<" in err for _, err in shown)

    support.eventually(window_closed)
    out = "".join(each for each, _ in shown).splitlines()
    err = "".join(each for _, each in shown).splitlines()
    assert out[0].startswith(">>> aggregated logs of choir, 0.3 s from ")
    assert [line.partition(" of ")[0] for line in out[1:-1]] == [
        "[3 similar log lines] step 1",
        "[3 similar log lines] step 2",
    ]
    assert out[-1].startswith("<<< aggregated logs of choir, 0.3 s from ")
    assert err[1:-1] == ["[3 similar log lines] careful"]


def test_switching_aggregation_off_shows_what_was_kept(speakers, capfd):
    mesh, speaker = speakers
    option(mesh, stream_to_client=True, aggregate_window_sec=60)
    speaker.say.call("kept").get()
    option(mesh, stream_to_client=True)
    assert "[3 similar log lines] kept" in capfd.readouterr().out
    speaker.say.call("as it comes").get()
    support.eventually(lambda: "[choir 1] as it comes" in capfd.readouterr().out)


def test_the_level_of_python_s_logging(speakers, capfd):
    mesh, speaker = speakers
    option(mesh, level=logging.WARNING)
    speaker.log.call(logging.INFO, "too low").get()
    option(mesh)  # INFO
    speaker.log.call(logging.INFO, "high enough").get()
    shown = []

    def said():
        shown.extend(capfd.readouterr().err.splitlines())
        return len(shown) >= 3

    support.eventually(said)
    assert all(
        "high enough" in line and "INFO:tests.speaker:[actor=<root>" in line for line in shown
    )
