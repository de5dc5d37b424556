"""The book of values: what cloze makes of small inputs, recorded in one readable file for each kind of value.

`make golden` computes every value anew and prints the differences in words; `make golden ARGS=--write` records them.
Where a change is meant, its commit says why and raises the version in the artefact's identity.
"""
