"""Profiles: options of `%mesh up --on` and `monarch-nb apply --on` under a name, in a file of the
user's own.

Rule of the file: options only, read when a profile is named. A file beside a notebook is not read:
options of ssh and sbatch can run commands, and a folder that came from elsewhere runs nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_ENGINE, _WORDS = "on", "args"
_VALUES: Final = (str, int)


class ProfileError(ValueError):
    """Says why a profile makes no sense."""


def file() -> Path:
    """Return where profiles are kept."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "monarch_nb/profiles.toml"


def names() -> list[str]:
    """Return the names of the profiles; none where the file cannot be read."""
    try:
        return list(_read())
    except ProfileError:
        return []


def usable() -> dict[str, list[str]]:
    """Return the profiles that make sense, each as `words_of` does."""
    found = {}
    for name in names():
        with contextlib.suppress(ProfileError):
            found[name] = words_of(name)
    return found


def words_of(name: str) -> list[str]:
    """Return a profile as a person would type it: `--on slurm --hosts 4`. Raises `KeyError` for
    one that is not there, `ProfileError` for one that makes no sense."""
    profile = _read()[name]
    where = f"profile {name!r} of {file()}"
    if not isinstance(profile, Mapping) or _ENGINE not in profile:
        raise ProfileError(f'{where} names no engine. Write there: on = "slurm"')
    words: list[str] = []
    for option, value in profile.items():
        if option == _WORDS:
            continue
        if isinstance(value, bool) or not isinstance(value, _VALUES):
            raise ProfileError(f"{where}: {option} must be a text or a whole number, not {value!r}")
        words.append(f"--{option.replace('_', '-')}={value}")
    own = profile.get(_WORDS, [])
    if not isinstance(own, list) or not all(isinstance(each, str) for each in own):
        raise ProfileError(f'{where}: args must be a list of texts, as ["--constraint=ib"]')
    return [*words, "--", *own]


def _read() -> dict[str, Any]:
    import tomllib  # nobody names a profile while the kernel starts

    path = file()
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path} cannot be read: {error}") from None
