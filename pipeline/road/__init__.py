"""The whole road as one command: preparation, pre-training and fine-tuning, one after the other, to one table."""
