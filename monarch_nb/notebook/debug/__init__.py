"""Debuggers' prompts in cells, and what JupyterLab's debugger debugs."""
