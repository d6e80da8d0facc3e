"""Magics and displays: the only box beside the kernel that knows IPython on the controller."""
