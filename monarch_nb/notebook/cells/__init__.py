"""A cell on its way to the ranks, and what is said while it runs."""
