"""The output directory of a preparation: one committed artefact per stage."""

from __future__ import annotations

DOCUMENTS, DEDUP, DECONTAMINATION, TAKEDOWN = "documents", "dedup", "decontamination", "takedown"
TOKENIZER, TOKENS = "tokenizer", "tokens"
STAGES = (DOCUMENTS, DEDUP, DECONTAMINATION, TOKENIZER, TAKEDOWN, TOKENS)
"""Directory names in order of creation; also the artefacts' kinds."""
WORK = "work"
"""Directory of the artefacts that only lead to those: signatures, buckets, counts. Without it everything can be
read; repairing a later artefact makes it again."""
REPAIR = "run `cloze data prepare` with the configuration that made it; only the damaged files are redone"
"""The next step in every message about a damaged artefact."""
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"


def shard_file(before: str, number: int, count: int, suffix: str) -> str:
    """File name of one of `count` shards. Names sort like their numbers, however many there are."""
    digits = max(5, len(str(count - 1)))
    return f"{before}{number:0{digits}d}-of-{count:0{digits}d}.{suffix}"
