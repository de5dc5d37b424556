"""Predictions for a run before it is started: memory, disk, hours, and alternatives."""
