"""Functions, endpoints and generators that run on ranks in turn with operations."""
