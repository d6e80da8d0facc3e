"""How ranks find each other for a process group, and who it is that they have found."""
