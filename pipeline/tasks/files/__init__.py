"""Files of tasks: lines, and rows with named columns."""
