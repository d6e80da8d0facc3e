"""The agent of a host: which ranks there are, who asks for what."""
