"""Tasks on one's own rows: CSV, JSON lines or Parquet, whose columns the configuration names; one form of task per
file."""
