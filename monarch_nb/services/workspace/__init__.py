"""Folders that are copied to other hosts."""
