"""Memory that other processes read and write by themselves: the names of Monarch's `monarch.rdma`.

Example:
    >>> from monarch_nb.rdma import RDMABuffer                         # doctest: +SKIP
    >>> handle = RDMABuffer(weights.view(torch.uint8).flatten())       # doctest: +SKIP
"""

from __future__ import annotations

from monarch_nb.services.transfer.rdma import (
    RDMAAction,
    RDMABuffer,
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)

__all__ = [
    "RDMAAction",
    "RDMABuffer",
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMAWriteTransferWarning",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
]
