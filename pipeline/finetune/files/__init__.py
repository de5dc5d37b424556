"""The published files of tasks, described once: for training, for evaluation and for decontamination.

lines            lines of text and JSON objects, and the errors of missing and of wrong files
tables           tab-separated columns: GLUE
squad            SQuAD's JSON
evaluation_set   which files hold the texts that a task evaluates on
"""
