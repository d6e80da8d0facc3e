"""The public API of actors, against real processes. Ranks import actors from `cast.py`."""
