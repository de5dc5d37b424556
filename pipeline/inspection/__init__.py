"""What a run read and learned from: samples, steps, lineage, comparisons."""
