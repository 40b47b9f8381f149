"""A user's problem: its checks, and what becomes of it as functions of a vector."""
