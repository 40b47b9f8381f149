"""Benchmarks, which report ratios to other libraries measured in the same run."""
