"""Monarch's settings: what takes effect, what is only kept, and what is refused."""

import os
import socket
import warnings

import pytest

from monarch_nb import (
    Actor,
    ChannelTransport,
    LimitError,
    attach_to_workers,
    configure,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch_nb.compat import config, settings
from monarch_nb.compat.config import (
    clear_runtime_config,
    configured,
    get_global_config,
    get_runtime_config,
    parametrize_config,
    parametrize_config_pointwise,
)
from monarch_nb.compat.transports import BindSpec


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    for field in settings.OURS.values():
        monkeypatch.delenv(f"MONARCH_NB_{field.upper()}", raising=False)
    yield
    clear_runtime_config()
    for field in settings.OURS.values():
        os.environ.pop(f"MONARCH_NB_{field.upper()}", None)


@pytest.mark.parametrize(
    "written, kept",
    [
        ("30s", "30s"),
        ("90s", "1m 30s"),
        ("1h30m", "1h 30m"),
        ("1h 30m", "1h 30m"),
        ("1500ms", "1s 500ms"),
        ("1.5s", "1s 500ms"),
        ("2 hours", "2h"),
        ("1 day", "1day"),
        ("48h", "2days"),
        ("0s", "0s"),
    ],
)
def test_durations_are_kept_in_one_form(written, kept):
    with configured(cleanup_timeout=written) as now:
        assert now["cleanup_timeout"] == kept


@pytest.mark.parametrize("wrong", ["invalid", "30", "abc123", "", "3 parsecs", "5s later"])
def test_a_text_that_is_no_duration_is_refused(wrong):
    with pytest.raises(TypeError, match="Invalid duration format"):
        config.configure(cleanup_timeout=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cleanup_timeout": 5},
        {"tail_log_lines": "many"},
        {"tail_log_lines": -1},
        {"tail_log_lines": True},
        {"prefix_with_rank": 1},
        {"default_transport": 42},
        {"default_encoding": "Json"},
        {"codec_max_frame_length": 1.5},
    ],
)
def test_a_value_of_another_kind_is_refused(wrong):
    with pytest.raises(TypeError):
        config.configure(**wrong)
    assert get_runtime_config() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"does_not_exist": 1},
        {"default_transport": "carrier_pigeon"},
        {"rdma_max_nics_per_buffer": 0},
    ],
)
def test_what_monarch_refuses_is_refused(wrong):
    with pytest.raises(ValueError):
        config.configure(**wrong)


def test_what_is_configured_ends_with_its_block():
    before = get_global_config()
    with configured(cleanup_timeout="7s", codec_max_frame_length=1 << 20) as now:
        assert (now["cleanup_timeout"], now["codec_max_frame_length"]) == ("7s", 1 << 20)
        assert os.environ["MONARCH_NB_CLEANUP_S"] == "7.0"
        with configured(cleanup_timeout="8s") as inner:
            assert (inner["cleanup_timeout"], inner["codec_max_frame_length"]) == ("8s", 1 << 20)
        assert get_global_config()["cleanup_timeout"] == "7s"
        assert get_runtime_config() == {
            "cleanup_timeout": "7s",
            "codec_max_frame_length": 1 << 20,
        }
    assert get_global_config() == before
    assert get_runtime_config() == {}


def test_what_has_no_effect_says_so_once():
    with pytest.warns(UserWarning, match="message_ttl_default is accepted and has no effect"):
        config.configure(message_ttl_default=7)
    config.configure(message_ttl_default=8)  # warnings are errors here
    assert get_global_config()["message_ttl_default"] == 8


def test_what_is_so_anyway_needs_no_warning():
    config.configure(enable_log_forwarding=True, prefix_with_rank=True, default_transport="tcp")
    assert get_global_config()["default_transport"] is ChannelTransport.TcpWithHostname
    with configured(default_transport="tcp://127.0.0.1:8080") as now:
        assert now["default_transport"] == "tcp://127.0.0.1:8080"
    with pytest.warns(UserWarning, match="enable_file_capture .* no effect"):
        config.configure(enable_file_capture=False)


def test_tests_are_run_with_every_combination():
    @parametrize_config(tail_log_lines={0}, prefix_with_rank={True, False})
    def test():
        raise AssertionError

    [mark] = test.pytestmark
    assert mark.args[0] == "_config_overrides"
    assert len(mark.args[1]) == 2
    with pytest.raises(ValueError, match="at least one"):
        parametrize_config()
    with pytest.raises(ValueError, match="the same number"):
        parametrize_config_pointwise(tail_log_lines=[1], prefix_with_rank=[True, False])


@parametrize_config_pointwise(cleanup_timeout=["5s", "6s"], process_exit_timeout=["7s", "8s"])
def test_a_test_sees_its_settings():
    now = get_global_config()
    assert (now["cleanup_timeout"], now["process_exit_timeout"]) in {("5s", "7s"), ("6s", "8s")}


# ------------------------------------------------------------------------------------- with a mesh


class Sized(Actor):
    @endpoint
    def length(self, data):
        return len(data)

    @endpoint
    def cleanup_s(self):
        return os.environ.get("MONARCH_NB_CLEANUP_S"), get_global_config()["cleanup_timeout"]


@pytest.mark.slow
def test_a_mesh_that_is_up_obeys(mesh_runtime):
    sized = this_host().spawn_procs().spawn("sized", Sized)
    assert sized.length.call_one(bytes(2 << 20)).get(30) == 2 << 20
    with configured(codec_max_frame_length=1 << 20), pytest.raises(LimitError):
        sized.length.call_one(bytes(2 << 20)).get(30)
    assert sized.length.call_one(bytes(2 << 20)).get(30) == 2 << 20


@pytest.mark.slow
def test_ranks_that_are_spawned_later_have_the_settings(mesh_runtime):
    with configured(cleanup_timeout="9s"):
        sized = this_host().spawn_procs().spawn("sized", Sized)
        assert sized.cleanup_s.call_one().get(30) == ("9.0", "9s")


def test_our_own_names_are_checked():
    with pytest.raises(TypeError, match="no_such"):
        configure(no_such=1)
    with pytest.raises(ValueError, match="MONARCH_NB_EXIT_S='soon' is not a number"):
        configure(exit_s="soon")
    os.environ.pop("MONARCH_NB_EXIT_S")
    with warnings.catch_warnings():
        configure(exit_s=5.0)


@pytest.mark.slow
def test_a_silent_host_is_given_up_when_monarchs_setting_says(mesh_runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        this_host().initialized.get(30)  # the client runs: it counts at once
        with configured(mesh_attach_config_timeout="250ms"):
            hosts = attach_to_workers(workers=[address])
        with pytest.raises(RuntimeError, match="attach failed: .*no answer within 0.25 s"):
            hosts.initialized.get(5)
    shutdown_context().get(20)  # it has gates to other hosts now


def test_a_bind_spec_is_equal_to_what_it_was_made_of():
    spec = BindSpec("tcp")
    assert spec == BindSpec(ChannelTransport.TcpWithHostname) == ChannelTransport.TcpWithHostname
    assert spec != BindSpec("ipc")
    assert {spec, BindSpec(spec)} == {spec}
    assert str(BindSpec("tcp://127.0.0.1:8080")) == "tcp://127.0.0.1:8080"
    with configured(default_transport="tcp://127.0.0.1:8080") as now:
        assert now["default_transport"] == BindSpec("tcp://127.0.0.1:8080")
    config.configure(default_transport=spec)
    assert get_global_config()["default_transport"] == spec
    with pytest.raises(ValueError, match="no such transport: 'carrier_pigeon'"):
        BindSpec("carrier_pigeon")
    with pytest.raises(TypeError, match="not 42"):
        BindSpec(42)
