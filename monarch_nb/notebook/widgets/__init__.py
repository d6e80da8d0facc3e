"""Widgets of ranks, relayed to the browser."""
