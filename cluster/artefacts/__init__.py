"""Artefacts on disk: manifests, atomic commits, records of parts, private directories, errors; no Ray."""
