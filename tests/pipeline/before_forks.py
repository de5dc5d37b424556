"""Does once what every rank would do at its first step, for the server from which `process_group` forks ranks.

That is two thirds of what a short run takes. Nothing here may start a thread, which a fork would not have.
"""

import pyarrow as pa
import torch

import pipeline.pretrain.assembly  # noqa: F401  # With DeepSpeed.
from data_prep.hashing import hash_strings

# Imports torch's compiler, as optimizers do.
torch.compile(torch.nn.Identity())
# Sets up numba.
hash_strings(pa.array(["x"]))
