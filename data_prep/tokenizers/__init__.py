"""Tokenizers: training one, checking one, and encoding in bulk with one."""
