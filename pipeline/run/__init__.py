"""Runs, on disk and in MLflow."""
