"""Measured numbers over time, thinned to a bounded size."""
