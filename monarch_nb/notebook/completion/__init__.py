"""Completion and help while typing."""
