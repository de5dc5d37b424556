"""The stages of a preparation, one per file: each makes, continues, repairs or confirms one artefact."""
