"""The published files of tasks, described once: for training, for evaluation and for decontamination.

lines            lines of text and JSON objects, gzipped or plain, and the errors of missing and of wrong files
tables           tab-separated columns: GLUE
rows             rows with named columns: CSV, JSON lines, Parquet, data sets that `datasets` saved
inference        SNLI and MultiNLI, as JSON lines or tab-separated
annotated        sentences whose words carry labels: CoNLL, CoNLL-U, trees of sentiment
tag_schemes      how tags mark entities: BIO, BIOES, IOB1
squad            SQuAD's JSON
mrqa             MRQA's gzipped JSON lines
summaries        texts with their summaries: rows, and CNN/DailyMail's stories
evaluation_set   which files hold the texts that a task evaluates on
"""
