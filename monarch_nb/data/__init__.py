"""Large buffers between processes: leases of shared memory. Knows nothing of zmq."""
