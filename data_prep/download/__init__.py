"""Corpora from where they are published: listed, fetched, checked."""
