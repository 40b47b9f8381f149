"""One step in a trust region: its length, its gain, and the next radius."""
