"""Checkpoints: their format, asynchronous saving, stores, retention and references."""
