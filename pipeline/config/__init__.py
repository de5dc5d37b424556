"""Configurations: load, merge, validate and explain."""
