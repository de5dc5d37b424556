"""The questions that a preflight asks of a machine, one function each; each answers with a `Check`."""
