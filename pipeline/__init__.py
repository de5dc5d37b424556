"""The user's side: command line, configuration, pre-training, fine-tuning, tracking, lineage."""

import sys
from importlib import import_module
from pathlib import Path

# `python -m` and Ray's workers search the working directory first, where a user may have a folder called `models`.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
for _name in ("cluster", "data_prep", "models"):
    import_module(_name)
del sys.path[0]
