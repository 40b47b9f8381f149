"""Compare methods that solve differential equations by networks: `python -m benchmarks pinns`."""
