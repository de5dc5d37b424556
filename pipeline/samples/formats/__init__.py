"""Input formats: how documents are cut into the rows of samples."""
