"""`RayJob`: hosts that a Ray cluster gives."""
