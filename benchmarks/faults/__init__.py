"""`python -m benchmarks faults`: each fault injected fifty times, and which promises were kept.

The experiments are tests of this project: each kills, stops, cuts off or floods real processes, and
asserts what a user has to see. Here they are repeated, watched from outside, and put into a table.
"""
