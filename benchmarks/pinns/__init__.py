"""Equations solved by networks: error against seconds of CPU, `python -m benchmarks pinns`."""
