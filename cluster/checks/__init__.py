"""Preflight checks: are this machine (`machine`), and the nodes of a cluster (`nodes`), fit to run?"""
