"""Training that goes on when a rank dies: decisions, without I/O."""
