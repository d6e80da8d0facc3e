"""Errors as plain data, and how equal ones are folded."""
