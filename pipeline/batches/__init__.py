"""From token stores to micro-batches: order, packing, mixing and loading as pure functions of one integer."""
