"""Settings as Monarch's `monarch.config` has them.

Those that mean something here take effect; the others are checked, kept and given back, and the
first use of each is answered with a warning that it has no effect (`settings.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import monarch_nb
from monarch_nb import ChannelTransport
from monarch_nb.compat import durations, transports
from monarch_nb.compat.settings import ALWAYS, DURATIONS, OURS, VALUES, Encoding
from monarch_nb.config import Config

__all__ = [
    "ChannelTransport",
    "Encoding",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
    "parametrize_config",
    "parametrize_config_pointwise",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_TRANSPORT: Final = "default_transport"
_set: Final[dict[str, Any]] = {}
_before: Final[dict[str, float | str]] = {}
"""Our settings, as they were before the first change."""
_warned: Final[set[str]] = set()


def configure(**settings: Any) -> None:
    """Change settings of this process, and of processes that it starts from now on.

    Raises `ValueError` for a name that Monarch has not, `TypeError` for a value of another kind.
    """
    checked = {name: _checked(name, value) for name, value in settings.items()}
    for name, value in checked.items():
        _set[name] = value
        if name in OURS:
            _change(OURS[name], value)
        elif not _is_so(name, value) and name not in _warned:
            _warned.add(name)
            warnings.warn(f"{name} is accepted and has no effect in monarch_nb", stacklevel=2)


def get_global_config() -> dict[str, Any]:
    """Return all settings as they are, by name. A copy."""
    return {
        **{name: _written(name, getattr(_ours(), field)) for name, field in OURS.items()},
        **ALWAYS,
        **DURATIONS,
        **VALUES,
        _TRANSPORT: ChannelTransport.Unix,
        **_set,
    }


def get_runtime_config() -> dict[str, Any]:
    """Return what `configure` has set, by name. A copy."""
    return dict(_set)


def clear_runtime_config() -> None:
    """Take back all that `configure` has set."""
    _set.clear()
    for field, value in _before.items():
        monarch_nb.configure(**{field: value})
    _before.clear()


@contextlib.contextmanager
def configured(**overrides: Any) -> Iterator[dict[str, Any]]:
    """Change settings until the block ends; gives all settings as they are then.

    Example:
        >>> with configured(cleanup_timeout="10s") as config:
        ...     config["cleanup_timeout"]
        '10s'
    """
    outside = get_runtime_config()
    try:
        configure(**overrides)
        yield get_global_config()
    finally:
        clear_runtime_config()
        configure(**outside)


def parametrize_config(**options: Iterable[Any]) -> Decorator:
    """Have pytest run a test with every combination of these values.

    Example:
        >>> @parametrize_config(prefix_with_rank={True, False})
        ... def test_output(): ...
    """
    return _parametrized(options, itertools.product(*options.values()))


def parametrize_config_pointwise(**options: Iterable[Any]) -> Decorator:
    """Have pytest run a test with the first values, then with the second ones, and so on.

    Raises `ValueError` unless there are as many of each.
    """
    counts = {name: len(list(values)) for name, values in options.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"every option needs the same number of values, not {counts}")
    return _parametrized(options, zip(*options.values(), strict=True))


def _parametrized(
    options: Mapping[str, Iterable[Any]], values: Iterable[tuple[Any, ...]]
) -> Decorator:
    import pytest

    if not options:
        raise ValueError("name at least one option")
    runs = [dict(zip(options, each, strict=True)) for each in values]
    ids = ["-".join(f"{name}={value}" for name, value in run.items()) for run in runs]
    return lambda test: pytest.mark.parametrize("_config_overrides", runs, ids=ids)(_with(test))


def _with(test: Callable[..., Any]) -> Callable[..., Any]:
    def run(_config_overrides: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with configured(**_config_overrides):
            return test(*args, **kwargs)

    async def run_async(_config_overrides: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with configured(**_config_overrides):
            return await test(*args, **kwargs)

    wrapped = functools.wraps(test)(run_async if asyncio.iscoroutinefunction(test) else run)
    own = inspect.Parameter("_config_overrides", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(test)
    vars(wrapped)["__signature__"] = signature.replace(
        parameters=[own, *signature.parameters.values()]
    )
    return wrapped


def _ours() -> Config:
    return Config.from_environ()


def _change(field: str, value: Any) -> None:
    _before.setdefault(field, getattr(_ours(), field))
    monarch_nb.configure(**{field: durations.seconds(value) if isinstance(value, str) else value})


def _written(name: str, value: Any) -> Any:
    return value if name == "codec_max_frame_length" else durations.text(value)


def _is_so(name: str, value: object) -> bool:
    if name == _TRANSPORT:
        return str(value).partition("://")[0] in {"tcp", "ipc"}
    return bool(value == {**ALWAYS, **DURATIONS, **VALUES}[name])


def _checked(name: str, value: Any) -> Any:
    if name == _TRANSPORT:
        return transports.checked(value)
    if name in DURATIONS or (name in OURS and name != "codec_max_frame_length"):
        if not isinstance(value, str):
            raise TypeError(f"{name} is a duration such as '30s', not {value!r}")
        return durations.text(durations.seconds(value))
    if name == "rdma_max_nics_per_buffer":
        return _count_or_none(name, value)
    if name in OURS:
        return _of_kind(name, value, int)
    default: object = {**ALWAYS, **VALUES}.get(name)
    if default is None:
        raise ValueError(f"invalid configuration key: `{name}`")
    return _of_kind(name, value, type(default))


def _of_kind(name: str, value: Any, kind: type[Any]) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind or (kind is int and value < 0):
        raise TypeError(
            f"invalid value `{value}` for configuration key `{name}`: a {kind.__name__}"
        )
    return value


def _count_or_none(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if _of_kind(name, value, int) < 1:
        raise ValueError(f"{name} is 1 or more, or None")
    return int(value)
