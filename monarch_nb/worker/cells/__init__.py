"""Cells on a rank: the queue, the shell, outcomes, completion, variables."""
