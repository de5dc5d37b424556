"""Finders of personal data in a text: a module per kind, each with a function from a text to spans.

Spans are (start, end) in characters, ascending, without overlaps. No span splits a pair of brackets.
"""
