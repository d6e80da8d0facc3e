"""Debuggers' prompts and adapters, seen from the controller."""
