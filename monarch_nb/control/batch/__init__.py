"""Notebooks that run without a page: `monarch-nb run | runs | follow | attach | stop`."""
