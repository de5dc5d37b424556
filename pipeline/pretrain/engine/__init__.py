"""DeepSpeed as this trainer needs it: updates made or skipped exactly, state saved and loaded in any shape."""
