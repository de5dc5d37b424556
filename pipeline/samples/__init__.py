"""From token stores to micro-batches: order, packing, mixing and loading as pure functions of one integer."""

from pipeline.samples.kernel_cache import use_kernel_cache

use_kernel_cache()
