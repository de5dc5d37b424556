"""Raw text to token shards, on Ray: documents, deduplication, tokenizer, tokens."""
