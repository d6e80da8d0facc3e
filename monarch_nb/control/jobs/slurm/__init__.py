"""Hosts from Slurm, by the commands of the site."""
