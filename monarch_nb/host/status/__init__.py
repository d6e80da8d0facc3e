"""What is measured of ranks and their host."""
