"""Tensors that move: to other ranks, to the controller, reduced into one."""
