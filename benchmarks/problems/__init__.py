"""Collections of least-squares problems with known solutions, for benchmarks and tests."""
