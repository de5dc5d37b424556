"""Prompting: what a language model writes into a text, or after it, without being trained for it."""
