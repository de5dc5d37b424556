"""Imported by every Python process that has this directory in PYTHONPATH: installs the fault of CHAOS_FAULT."""

import importlib.util
import json
import os
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("chaos_injected", Path(__file__).parents[1] / "injected.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_INJECTED = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_INJECTED)
_INJECTED.install(_INJECTED.Injected(**json.loads(os.environ["CHAOS_FAULT"])))
