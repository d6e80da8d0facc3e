"""Several ranks in one display."""
