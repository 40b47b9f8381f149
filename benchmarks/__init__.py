"""Benchmarks: every figure is a ratio against a peer that was measured in the same run."""
