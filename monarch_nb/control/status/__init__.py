"""The one snapshot of all meshes, and what it is made of."""
