"""Measurements, never tests. ``python -m benchmarks NAME`` prints a table and writes JSON beside ``benchmarks/RESULTS.md``."""
