"""Classification: a label for a text or a pair of texts."""
