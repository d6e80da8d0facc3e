"""The client: starts hosts, is the root of supervision, runs cells, keeps the status snapshot."""
