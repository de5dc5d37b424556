"""Optimizers, one paper per file."""
