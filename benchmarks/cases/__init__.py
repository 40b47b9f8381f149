"""The cases: every file defines `run(settings)`, which yields metrics."""
