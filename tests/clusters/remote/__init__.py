"""Ranks on other hosts in a notebook: all that works on one host works there."""
