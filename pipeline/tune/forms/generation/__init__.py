"""Generation: a text for a text."""
