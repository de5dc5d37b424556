"""What a preparation's output directory holds: one committed artefact per stage."""

from __future__ import annotations

DOCUMENTS, DEDUP, DECONTAMINATION = "documents", "dedup", "decontamination"
TOKENIZER, TOKENS = "tokenizer", "tokens"
STAGES = (DOCUMENTS, DEDUP, DECONTAMINATION, TOKENIZER, TOKENS)
"""Directory names, in the order in which they are made; also the artefacts' kinds."""
WORK = "work"
"""Directory of the artefacts that only lead to those: signatures, buckets, counts. Without it everything can be
read; a repair of what was made from it makes it again."""
REPAIR = "run `cloze data prepare` with the configuration that made it; only the damaged files are redone"
"""What every message about a damaged artefact tells the user to do."""
TOKENIZER_FILE = "tokenizer.json"
