"""Bringing back what meshes have lost: the heal, and on which hosts ranks are started again."""
