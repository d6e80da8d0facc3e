"""The public API of actors, against real processes. `cast.py` holds the actors that ranks import."""
