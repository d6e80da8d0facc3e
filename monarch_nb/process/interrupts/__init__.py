"""How user code that runs is interrupted."""
