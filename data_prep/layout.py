"""The output directory of a preparation: one committed artefact per stage."""

from __future__ import annotations

from typing import NamedTuple

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


class ShardNames(NamedTuple):
    """The file names of one kind of shards. They sort like their numbers, however many there are."""

    before: str
    suffix: str

    def file(self, number: int, count: int) -> str:
        """One of `count` files."""
        digits = max(5, len(str(count - 1)))
        return f"{self.before}{number:0{digits}d}-of-{count:0{digits}d}.{self.suffix}"

    def files(self, count: int) -> list[str]:
        """All of them, in order."""
        return [self.file(number, count) for number in range(count)]


DOCUMENT_FILES = ShardNames("documents-", "parquet")
SELECTION_FILES = ShardNames("selection-", "parquet")
HIT_FILES = ShardNames("hits-", "parquet")
SAMPLE_FILES = ShardNames("sample-", "parquet")
RECORD_FILES = ShardNames("", "arrow")
"""Files of shards and of partitions."""
TOKEN_FILES = ShardNames("data-", "arrow")
"""The pattern is the one of `datasets`."""
