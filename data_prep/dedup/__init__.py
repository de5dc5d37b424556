"""Deduplication out of core: equal documents, near-duplicates, repeated paragraphs, in this order.

    shingles                  texts in blocks; hashes of their words
    repeats, paragraphs       hashes of documents and of paragraphs; all but the first with the same key
    minhash, bands            signatures and the buckets they fall into
    records                   sorted records on disk
    edges, components         documents that share a bucket: candidate pairs, and the graph of them
    verification              where it is asked for, only those whose n-grams are really that similar
    survivors                 the remaining documents of a shard after each method
    steps                     all of it as artefacts, in order

A task holds a row group of one document shard, one partition of the records (`records.PARTITION_RECORDS`), or the
decisions about one document shard; none of these grows with the corpus.
"""
