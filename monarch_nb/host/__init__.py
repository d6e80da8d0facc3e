"""One agent per host: forks ranks from a zygote, watches them, outlives nobody."""
