"""What a preparation's output directory holds: one committed artefact per stage."""

from __future__ import annotations

DOCUMENTS, DEDUP, TOKENIZER, TOKENS = "documents", "dedup", "tokenizer", "tokens"
STAGES = (DOCUMENTS, DEDUP, TOKENIZER, TOKENS)
"""Directory names, in the order in which they are made; also the artefacts' kinds."""
REPAIR = "run `cloze data prepare` with the configuration that made it; only the damaged files are redone"
"""What every message about a damaged artefact tells the user to do."""
TOKENIZER_FILE = "tokenizer.json"
