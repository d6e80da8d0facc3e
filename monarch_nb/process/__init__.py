"""One process as a member of a mesh: messages, futures, interrupts, supervision."""
