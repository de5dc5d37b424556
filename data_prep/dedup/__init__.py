"""Deduplication: which rows of every document shard are kept."""
