"""Measure time and memory on an accelerator: `python -m benchmarks.accelerator --out DIR`."""
