"""pydevd inside a process, the controller or a rank, and what its panels show."""
