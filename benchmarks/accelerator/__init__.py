"""What fnopt costs on an accelerator: `python -m benchmarks.accelerator --out DIR`."""
