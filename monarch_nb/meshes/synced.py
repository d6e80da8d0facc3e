"""Where a workspace has landed: what a sync reports, and what later ranks of a host are told.

Plain data; who brings it there is `sync.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

WORKSPACE_DIR: Final = "WORKSPACE_DIR"
"""Names the workspace folder of a host in the environment of its worker and of its ranks."""


@final
@dataclass(frozen=True)
class HostSync:
    """What one host got: its name, its workspace folder, files and bytes sent, files deleted."""

    host: str
    folder: str
    files_sent: int
    bytes_sent: int
    deleted: int


@final
@dataclass(frozen=True)
class SyncReport:
    """What a sync did, one `HostSync` per host; `files_sent`, `bytes_sent`, `deleted` in all.
    `reloaded` are the modules that ranks loaded again."""

    hosts: tuple[HostSync, ...]
    reloaded: tuple[str, ...] = ()

    @property
    def files_sent(self) -> int:
        """Files whose bytes were sent, over all hosts."""
        return sum(each.files_sent for each in self.hosts)

    @property
    def bytes_sent(self) -> int:
        """Bytes of files, over all hosts."""
        return sum(each.bytes_sent for each in self.hosts)

    @property
    def deleted(self) -> int:
        """Files and links deleted, over all hosts."""
        return sum(each.deleted for each in self.hosts)

    def __str__(self) -> str:
        lines = [
            f"{each.host}:{each.folder}: {each.files_sent} files ({each.bytes_sent} bytes) sent, "
            f"{each.deleted} deleted"
            for each in self.hosts
        ]
        again = [f"loaded again: {', '.join(self.reloaded)}"] if self.reloaded else []
        return "\n".join([*lines, *again])


@dataclass
class SyncedFolders:
    """Where folders of this host are on another: `pairs` from here to there."""

    root: str
    pairs: dict[str, str] = field(default_factory=dict)
    packages: str | None = None

    def there(self, path: str) -> str | None:
        for local, remote in self.pairs.items():
            if path == local or path.startswith(f"{local}/"):
                return remote + path[len(local) :]
        return None

    def cwd(self, here: str) -> str:
        return self.there(here) or next(iter(self.pairs.values()), self.root)

    def import_path(self, here: Sequence[str]) -> list[str]:
        places = [*self.pairs.values(), *(self.there(each) or each for each in here)]
        return list(dict.fromkeys([*places, *([self.packages] if self.packages else [])]))
