"""Sabotages of one line each, and the tests that have to notice them: `make mutants`."""
