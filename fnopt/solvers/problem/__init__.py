"""Checks of the user's functions and arguments, and their conversion to functions of a vector."""
