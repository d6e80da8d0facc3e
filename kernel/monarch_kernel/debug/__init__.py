"""JupyterLab's debugger on ranks."""
