"""Speeds, FLOPs, machines and the parts of a step."""
