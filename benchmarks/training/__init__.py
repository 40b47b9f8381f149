"""Comparison of tuned optimizers on small tasks: the cost to reach a training loss."""
