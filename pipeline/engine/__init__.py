"""The training engine: one interface, and DeepSpeed behind it."""
