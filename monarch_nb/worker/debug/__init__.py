"""Debuggers inside a rank: pdb, and the debug adapter."""
