"""Meshes of hosts, processes and actors as users hold them."""
