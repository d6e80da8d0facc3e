"""Programs for torchrun on a mesh: the names of Monarch's `monarch.spmd`.

Example:
    >>> from monarch_nb.spmd import setup_torch_elastic_env            # doctest: +SKIP
    >>> setup_torch_elastic_env(procs)                                 # doctest: +SKIP
"""

from __future__ import annotations

from monarch_nb.services.spmd import (
    SPMDActor,
    setup_torch_elastic_env,
    setup_torch_elastic_env_async,
)

__all__ = ["SPMDActor", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]
