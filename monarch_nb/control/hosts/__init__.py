"""Agents: of this host, and of hosts that are attached."""
