"""Ranks that hang: their stacks, their collectives, their way out."""
