"""Decontamination: what a corpus shares with the evaluation sets is found, reported and removed."""
