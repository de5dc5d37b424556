"""Looking into runs: samples, steps, lineage, exposure."""
