"""The training comparison: small tasks, tuned optimizers, five seeds, and what a loss costs."""
