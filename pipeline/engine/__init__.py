"""The training engine: one interface, implemented with DeepSpeed."""
