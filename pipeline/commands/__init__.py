"""The verbs of the command line, one file per group. Each imports what it needs when it is called."""
