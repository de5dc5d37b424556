"""Deduplication out of core: equal documents, near-duplicates, repeated paragraphs, in this order.

    text_blocks, shingles     texts in blocks; hashes of their words
    exact, paragraphs         hashes of documents and of paragraphs
    minhash, bands            signatures and the buckets they fall into
    records, repeats          sorted records on disk; all but the first with the same key
    edges, components         the graph of documents that share a bucket
    candidates, verification  where it is asked for, only those whose n-grams are really that similar
    survivors, final          the remaining documents of a shard after each method, and in the end
    steps                     all of it as artefacts, in order

A task holds a row group of one document shard, one partition of the records (`records.PARTITION_RECORDS`), or the
decisions about one document shard; none of these grows with the corpus.
"""
