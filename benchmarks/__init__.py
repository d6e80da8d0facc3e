"""Benchmarks: `python -m benchmarks` measures monarch_nb beside the raw floor and its peers, and
writes RESULTS.md.

One rule: a figure is comparable. Every system runs the same measure (measures.py) on the same work
(work.py) in the same run; all that differs is the adapter in systems/. One process per measure and
system, ended by a deadline; what does not run is reported with its reason.
"""
