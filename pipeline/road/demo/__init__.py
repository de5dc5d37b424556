"""The demo, and the tasks that exist for it only."""
