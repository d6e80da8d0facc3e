"""The fork server, and what a process does to become a rank."""
