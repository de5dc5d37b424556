"""Files of tasks: lines and JSON objects, GLUE's tables, and rows with named columns."""
