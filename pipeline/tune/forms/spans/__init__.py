"""Question answering: a span of a passage, read in sliding windows."""
