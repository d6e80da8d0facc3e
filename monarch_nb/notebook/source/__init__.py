"""Source lines, tracebacks and names of cells."""
