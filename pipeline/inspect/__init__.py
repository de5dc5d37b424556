"""Looking into runs: samples, steps, lineage, comparisons."""
