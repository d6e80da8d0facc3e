"""Monarch's settings: their names, their defaults, and what they are here.

Rule: a setting that is in neither `OURS` nor `ALWAYS` has no effect.
"""

from __future__ import annotations

import enum
from typing import Any, Final


class Encoding(enum.Enum):
    """How Monarch writes its messages. Without effect here: messages have one form."""

    Bincode = 0
    Json = 1
    Multipart = 2


OURS: Final = {
    "cleanup_timeout": "cleanup_s",
    "codec_max_frame_length": "message_limit_bytes",
    "mesh_attach_config_timeout": "attach_s",
    "mesh_proc_spawn_max_idle": "start_s",
    "process_exit_timeout": "exit_s",
    "supervision_watchdog_timeout": "grace_s",
}
"""What takes effect, and which field of `Config` it is."""

ALWAYS: Final[dict[str, object]] = {
    "enable_dest_actor_reordering_buffer": True,
    "enable_file_capture": True,
    "enable_log_forwarding": True,
    "mesh_bootstrap_enable_pdeathsig": True,
    "prefix_with_rank": True,
    "rdma_allow_tcp_fallback": True,
}
"""What is always so here: saying it changes nothing, saying otherwise has no effect."""

DURATIONS: Final = {
    "actor_spawn_max_idle": "30s",
    "channel_net_rx_buffer_full_check_interval": "5s",
    "get_actor_state_max_idle": "30s",
    "get_proc_state_max_idle": "1m",
    "host_spawn_ready_timeout": "30s",
    "mesh_orphan_timeout": "1m",
    "mesh_terminate_timeout": "10s",
    "message_ack_time_interval": "500ms",
    "message_delivery_timeout": "30s",
    "proc_stop_max_idle": "30s",
    "split_max_buffer_age": "50ms",
    "stop_actor_timeout": "10s",
}

VALUES: Final[dict[str, Any]] = {
    "channel_tcp_congestion": "",
    "default_encoding": Encoding.Multipart,
    "force_file_log": False,
    "max_cast_dimension_size": 16,
    "mesh_admin_addr": "",
    "mesh_terminate_concurrency": 16,
    "message_ack_every_n_messages": 1000,
    "message_latency_sampling_rate": 0.01,
    "message_ttl_default": 64,
    "pyspy_bin": "",
    "rdma_cq_poller_per_device": True,
    "rdma_disable_ibverbs": False,
    "rdma_ibverbs_target": "",
    "rdma_max_chunk_size_mb": 64,
    "rdma_max_nics_per_buffer": None,
    "rdma_min_stripe_size_kb": 512,
    "rdma_peer_device_affinity": "",
    "rdma_qps_per_cq": 64,
    "rdma_runtime_worker_threads": 4,
    "read_log_buffer": 100,
    "remote_alloc_allowed_port_range": slice(0, 0),
    "remote_alloc_bind_to_inaddr_any": False,
    "remote_alloc_bootstrap_addr": "",
    "small_write_threshold": 256,
    "split_max_buffer_size": 5,
    "tail_log_lines": 0,
}
