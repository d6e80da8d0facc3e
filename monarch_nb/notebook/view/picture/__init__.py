"""A mesh as a still picture."""
