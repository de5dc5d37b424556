"""The log of a run on disk, and the process that sends it to MLflow."""
