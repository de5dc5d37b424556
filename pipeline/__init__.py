"""What a user does: command line, configuration, pre-training, fine-tuning, tracking, lineage."""
