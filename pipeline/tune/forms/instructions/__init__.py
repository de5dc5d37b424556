"""Instruction tuning: the responses of conversations, after the turns before them."""
