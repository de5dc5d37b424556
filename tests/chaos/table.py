"""The results as a page: one line per fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TOP = """# Faults, and what they cost

`make chaos` does this to real processes, and writes this page. A tiny pre-training on two ranks (160 updates, a
checkpoint every 20) suffers each fault at a moment that a seed draws, and goes on to its end. Then its last weights and
all losses are compared with a run without faults, every update must be in the log and in MLflow once, every checkpoint
must verify, the run must be FINISHED in MLflow, and nothing half-written may be left.

*Updates repeated*: updates that had been made, and were made again from the newest checkpoint. Updates take
milliseconds here, so that it is up to two saves behind. *Seconds*: the longest time without a finished update after
the fault and before the next one, so it has everything in it: noticing, a person's or a scheduler's next command (which
comes at once here), starting processes, restoring. A run without faults took {seconds} s from start to end, most of it
start-up. The machine had {processors} processors, and a load of {least:.0f} to {most:.0f} from this and other work.

| Fault | What a person or scheduler did | Exit code | Runbook | Updates repeated | Seconds | Same run, bit for bit |
|---|---|---|---|---|---|---|
"""


def page(found: Mapping[str, Any], campaigns: Sequence[str]) -> str:
    """`results.json` as Markdown.

    Args:
        campaigns: all of them, in their order.
    """
    done = found["campaigns"]
    lines = "".join(_line(row) for name in campaigns for row in done[name])
    loads = found["loads"].values()
    top = _TOP.format(**found, least=min(loads), most=max(loads))
    return f"{top}{lines}\nSeed {found['seed']}.\n"


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
