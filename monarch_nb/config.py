"""One frozen dataclass of settings, units in the names, read once from the environment.

Every deadline of the failure detector derives from `detect_s`. A setting `x_s` is overridden by the
environment variable `MONARCH_NB_X_S`. There is no other place where the environment is consulted
for behaviour.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Final

VERSION: Final = "0.1.0"
RANK_COMMAND: Final = "-P -m monarch_nb.host.rank"
"""What a Python executes to become a rank. Who writes a command for that knows only its words.
`-P`: a `json.py` beside the notebook is a module of the user's."""

prefix_python_logs_with_actor = True
"""Log records of actors and of the client start with `[actor=<...>] `. Read for each record."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of this process and, through their boot record, of its ranks.

    Example:
        >>> Config(detect_s=1.0).pulse_timeout_s
        0.75
    """

    detect_s: float = 2.0
    """A hang or a partition is *silent* within this time; other deadlines derive from it."""
    grace_s: float = 10.0
    """How long a rank may be silent before it counts as unreachable."""
    outage_s: float = 30.0
    """How long nothing may be heard of another host before it counts as unreachable; on it, of the
    client, before its ranks end. Nothing is lost meanwhile."""
    keep_s: float = 0.0
    """How long meshes of a notebook on this machine go on without their kernel; 0: they end with
    it. `%mesh up --keep 8h` says it of one."""
    mesh_on: str = ""
    """Options of `%mesh up` where it names no hosts: `--on slurm --hosts 4`. `monarch-nb run --on`
    sets it for a notebook."""
    cleanup_s: float = 3.0
    """How long an actor's `__cleanup__` may take."""
    start_s: float = 120.0
    """How long a command that starts a rank may take until its process is one."""
    fan_out: int = 32
    """Most hosts to which the controller has links of its own, and each host to ones under it."""
    attach_s: float = 10.0
    """How long a host that is attached may take to answer."""
    exit_s: float = 5.0
    """How long an orderly exit may take before processes are killed."""
    shared_bytes: int = 8 << 30
    """Most shared memory this process lends at a time."""
    shared_threshold_bytes: int = 1 << 20
    """Buffers of this size and more travel by shared memory on one host."""
    inline_limit_bytes: int = 64 << 20
    """With shared memory full, buffers up to this size still travel inline."""
    message_limit_bytes: int = 64 << 30
    """A larger message is refused before it is sent."""
    breakpoints: str = "auto"
    """Ranks stop at breakpoints: "auto" where somebody can answer, "stop" always, "pass" never."""
    preload: str = "auto"
    """Modules that a host loads once, for all its ranks: `torch,transformers`, or "none". "auto":
    torch and numpy where the program uses them; when idle, what first uses of torch import."""
    log_dir: str = ""
    """Where what ranks write is kept, by kernel; "" keeps it until the client ends."""
    log_bytes: int = 1 << 30
    """The log of a rank grows to this; then its oldest part is removed."""

    testing: bool = False
    """1: hosts and ranks let tests harm them (`monarch_nb.testing`)."""

    @property
    def pulse_interval_s(self) -> float:
        """Time between two heartbeats of a link."""
        return self.detect_s / 4

    @property
    def pulse_timeout_s(self) -> float:
        """Silence of a link after which it counts as broken."""
        return self.detect_s * 3 / 4

    def preloads(self, auto: Iterable[str]) -> tuple[str, ...]:
        """Return the modules that `preload` names; `auto` where it says so.

        Example:
            >>> Config(preload="torch,transformers").preloads(["numpy"])
            ('torch', 'transformers')
        """
        if self.preload == "auto":
            return tuple(auto)
        names = (name.strip() for name in self.preload.split(","))
        return tuple(name for name in names if name not in ("", "none"))

    @property
    def loads_when_idle(self) -> bool:
        """Whether hosts load more than is asked for, while nobody waits for them."""
        return self.preload == "auto"

    @staticmethod
    def from_environ(environ: dict[str, str] | None = None) -> Config:
        """Apply `MONARCH_NB_*`. Raises `ValueError` that names the variable."""
        source = os.environ if environ is None else environ
        found: dict[str, str | float] = {}
        for field in dataclasses.fields(Config):
            name = f"MONARCH_NB_{field.name.upper()}"
            if name in source:
                found[field.name] = _value(name, source[name], field.type)
        if found.get("breakpoints", "auto") not in ("auto", "stop", "pass"):
            said = found["breakpoints"]
            raise ValueError(f"MONARCH_NB_BREAKPOINTS={said!r} is none of auto, stop, pass")
        for module in Config(preload=str(found.get("preload", ""))).preloads(()):
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError(f"MONARCH_NB_PRELOAD: {module!r} is no name of a module")
        return Config(**found)  # type: ignore[arg-type]  # each was read as its field says


def _value(name: str, text: str, kind: object) -> str | float:
    if kind == "str":
        return text
    if kind == "bool":
        if text not in ("0", "1", "False", "True"):
            raise ValueError(f"{name}={text!r} is neither 0 nor 1")
        return text in ("1", "True")
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None
