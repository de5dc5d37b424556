"""Epochs: the shuffle index of samples, and its cache on disk."""
