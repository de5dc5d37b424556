"""Running work on machines: Ray runtime, shard tasks, train groups, jobs, preflight; artefacts on disk.

Knows neither tokens nor models: it runs callables over shards and ranks.
"""
