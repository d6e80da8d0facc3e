"""Shapes, values, frames, pickling and folding: pure decisions, without I/O, clock or thread."""
