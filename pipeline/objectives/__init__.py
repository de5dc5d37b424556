"""Training objectives: one file each, with `corrupt`, `loss` and the network they train.

`OBJECTIVES` names them all by the `kind` of their settings.
"""

from collections.abc import Mapping
from types import ModuleType

from pipeline.objectives import mlm

OBJECTIVES: Mapping[str, ModuleType] = {"mlm": mlm}
