"""Every import of DeepSpeed, and every private name of it."""
