"""Tasks of the demo, made from the Python documentation's docstrings."""
