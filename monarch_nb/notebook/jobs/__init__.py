"""Hosts that a notebook asks an engine for: where they stand, what is said of it."""
