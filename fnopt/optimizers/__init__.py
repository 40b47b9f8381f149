"""Named optimizers: every one is a chain of transforms."""

from fnopt.optimizers._adam import adam

__all__ = ["adam"]
