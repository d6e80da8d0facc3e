"""Inside a rank: its main thread, its cells, its standard streams."""
