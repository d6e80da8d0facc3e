"""Cells, scripts, variables and completions, sent to ranks."""
