"""One page about a token store: numbers, plots and sampled documents in a file that needs nothing else."""
