"""Instruction tuning: the responses of conversations, behind the turns before them."""
