"""Measurements against named peers, interleaved in one run and reported as ratios. `make bench` runs them all."""
