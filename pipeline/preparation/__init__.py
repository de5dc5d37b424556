"""The configuration of a data preparation, checked with everything that it names."""
