"""Checks of a user's problem, and its conversion to functions of a vector."""
