"""Deduplication out of core: equal documents, near-duplicates, repeated paragraphs, in this order.

    config                    settings, and the shape of bands that finds what they ask for
    records                   sorted records on disk; equal documents, all but the first with the same key
    texts                     the remaining documents of a shard after each method; hashes of their words
    paragraphs                repeated paragraphs
    near                      signatures and the buckets they fall into; exact similarities where they are asked for
    graph                     documents that share a bucket: candidate pairs, and the components of their graph

A task holds a row group of one document shard, one partition of the records (`records.PARTITION_RECORDS`), or the
decisions about one document shard; none of these grows with the corpus.
"""
