"""When to stop: tests of convergence, and the examination of what they claim."""
