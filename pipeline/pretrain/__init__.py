"""Pre-training: configuration, DeepSpeed engine, schedule, checkpoints and the loop of every rank."""
