"""The results as a page: one line per fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TOP = """# Faults, and what they cost

`make chaos` does this to real processes, and writes this page. A tiny pre-training on two ranks (160 updates, a
checkpoint every 20) suffers each fault at a moment that a seed draws, and goes on to its end. Then its last weights and
all losses are compared with a run without faults, every update must be in the log and in MLflow once, every checkpoint
must verify, the run must be FINISHED in MLflow, and nothing half-written may be left.

*Updates repeated*: updates that had been made, and were made again from the newest checkpoint. *Seconds*: the longest
time without a finished update after the fault and before the next one, so it has everything in it: noticing, a person's
or a scheduler's next command (which comes at once here), starting processes, restoring. A run without faults took
{seconds} s from start to end, most of it start-up; the machine had {processors} processors, and a load of {load:.0f}
from other work.

| Fault | What a person or scheduler did | Exit code | Runbook | Updates repeated | Seconds | Same run, bit for bit |
|---|---|---|---|---|---|---|
"""


def page(found: Mapping[str, Any], missing: Sequence[str]) -> str:
    """`results.json` as Markdown.

    Args:
        missing: campaigns without a result.
    """
    rows = [row for campaign in found["campaigns"].values() for row in campaign]
    not_run = (
        f'Without a result yet: {", ".join(missing)} (`make chaos ARGS="--only NAME"`).\n' if missing else ""
    )
    return _TOP.format(**found) + "".join(map(_line, rows)) + f"\nSeed {found['seed']}. {not_run}"


def _line(row: Mapping[str, Any]) -> str:
    if row["skipped"]:
        return f"| {row['fault']} | not done here: {row['skipped']} | | | | | |\n"
    codes = ", ".join(str(code) if code >= 0 else f"signal {-code}" for code in row["exit_codes"]) or "none"
    pages = ", ".join(f"[{page}](../runbooks/{page})" for page in row["runbooks"])
    note = f" ({row['note']})" if row["note"] else ""
    same = {True: "yes", False: "**no**", None: ""}[row["identical"]]
    if row["problems"]:
        same += f" **{'; '.join(row['problems'])[:200]}**"
    cells = [f"{row['fault']}{note}", row["operator"], codes, pages, row["repeated"], row["seconds"], same]
    return f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |\n"
