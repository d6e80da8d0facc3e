"""The client: starts hosts, is the root of supervision, runs cells, keeps the status snapshot."""

from monarch_nb.process.remote_errors import name_files as name_files
