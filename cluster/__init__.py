"""What machines do: Ray runtime, shard tasks, train groups, jobs, storage, errors, preflight.

Knows neither tokens nor models: it runs callables over shards and ranks.
"""
