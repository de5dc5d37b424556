"""Runs and data jobs are watched by the files that they write; nothing here writes to a run."""
