"""What lies on disk: errors, manifests, atomic commits, shard records; no Ray."""
