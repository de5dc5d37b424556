"""What a run will need, worked out before anything is started: memory, disk, hours, and what to choose."""
