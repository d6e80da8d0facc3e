"""Who owns which mesh, and who is told when part of it is lost."""
