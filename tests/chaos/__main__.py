"""Faults on real processes: `python -m tests.chaos [--only NAME ...] [--seed N] [--out DIR]`, or `make chaos`.

Each campaign is a tiny pre-training that suffers faults, at moments drawn from the seed, and ends; its last weights,
log, checkpoints and tracked run are then compared with a run without faults. Writes `results.json`, and with
all campaigns the table in docs/chaos.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.campaigns import CAMPAIGNS, Campaign
from tests.chaos.scene import Reference, Row, Scene, make_reference
from tests.conftest import write_store

ROOT = Path(__file__).parents[2]
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


def main() -> int:
    """Run campaigns; returns 0 where every run came to its end as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, metavar="NAME", help=", ".join(CAMPAIGNS))
    parser.add_argument("--seed", type=int, default=1, help="draws the moments of the faults")
    parser.add_argument("--out", type=Path, default=ROOT / "chaos", help="gets results.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / "results.json"
    found: dict[str, Any] = {"campaigns": {}}
    if arguments.only and results.exists():
        found = json.loads(results.read_text())
    work = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        store = write_store(work / "tokens")
        reference = _reference(arguments.out / "reference.json", work, store, bool(arguments.only))
        print(f"without faults: {reference.seconds} s", flush=True)
        for name in arguments.only or CAMPAIGNS:
            seed = arguments.seed + list(CAMPAIGNS).index(name)
            rows = attempt(CAMPAIGNS[name], name, work, store, reference, seed)
            found["campaigns"][name] = [asdict(row) for row in rows]
            found |= {"seed": arguments.seed, "seconds": reference.seconds, "processors": os.cpu_count()}
            found.setdefault("loads", {})[name] = os.getloadavg()[1]
            results.write_text(json.dumps(found, indent=2) + "\n")
            for row in rows:
                print(f"{row.name}: {'; '.join(row.problems) or row.skipped or 'good'}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if found["campaigns"].keys() >= set(CAMPAIGNS):
        (ROOT / "docs/chaos.md").write_text(page(found, list(CAMPAIGNS)))
    return int(any(row["problems"] for rows in found["campaigns"].values() for row in rows))


def _reference(kept: Path, work: Path, store: Path, again: bool) -> Reference:
    """The run without faults; an earlier one will do on this machine, where only some campaigns are run again."""
    if again and kept.exists():
        return Reference(**json.loads(kept.read_text()))
    reference = make_reference(work / "reference", store)
    kept.write_text(json.dumps(asdict(reference)))
    return reference


def attempt(
    campaign: Campaign, name: str, work: Path, store: Path, reference: Reference, seed: int
) -> list[Row]:
    """One campaign; what goes wrong is a problem of its last row."""
    if why := campaign.cannot():
        return [Row(name, name, skipped=why)]
    directory = work / name
    began = time.monotonic()
    scene: Scene | None = None
    with ExitStack() as held:
        try:
            overrides = [each.format(directory=directory) for each in campaign.overrides]
            around = held.enter_context(campaign.around(directory))
            scene = Scene(directory, store, seed, reference, *overrides, around=around)
            held.callback(scene.close)
            campaign.suffer(scene)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            row = scene.rows[-1] if scene and scene.rows else Row(name, name)
            row.problems.append(f"{type(error).__name__}: {error}")
            if scene is None or not scene.rows:
                return [row]
    print(f"campaign {name}: {time.monotonic() - began:.0f} s", flush=True)
    return scene.rows


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


if __name__ == "__main__":
    sys.exit(main())
