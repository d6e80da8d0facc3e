"""Actors that are started again when they, or their processes, fail."""
