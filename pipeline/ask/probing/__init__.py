"""Probing: what can be read from the hidden states of a network, without training it."""
