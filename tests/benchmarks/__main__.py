"""`python -m tests.benchmarks [--out DIRECTORY] [NAME ...]`: run benchmarks, each in a process of its own.

Without a name, those of the table in docs/speeds.md; `all` names all.

Prints their outcomes, and writes `results.json` with ratios, spreads, versions and the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import orjson
from cpuinfo import get_cpu_info

from tests.benchmarks.harness import line_of
from tests.benchmarks.published import differences, published

PUBLISHED = (
    *("reading", "noising", "encoding", "near_duplicates", "web_archive", "training_step", "finetuning"),
    *("trainer", "checkpointing", "start"),
)
"""Files of this folder whose figures the table of speeds has."""
OTHERS = (
    *("packing", "growth", "plan_memory", "control_plane", "many_inputs", "large_store", "long_histories"),
)
"""Files that count, or ask how large things may grow."""
BENCHMARKS = (*PUBLISHED, *OTHERS)


def main() -> None:
    """Run the chosen benchmarks, or all that `docs/speeds.md` reports."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="directory of results.json")
    given = parser.parse_args()
    names = BENCHMARKS if given.names == ["all"] else given.names or PUBLISHED
    if unknown := {*names} - {*BENCHMARKS}:
        parser.error(f"no benchmark is named {', '.join(unknown)}")
    given.out.mkdir(parents=True, exist_ok=True)
    results = {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": get_cpu_info().get("brand_raw", platform.machine()),
            "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
            "load": [round(one, 2) for one in os.getloadavg()],
        },
        "versions": dict(sorted((one.metadata["Name"], one.version) for one in distributions())),
        "seconds": (seconds := dict[str, float]()),
        "lines": (lines := list[dict[str, Any]]()),
        "failed": (failed := dict[str, int]()),
    }
    for name in names:
        started = time.monotonic()
        found = given.out / f"{name}.jsonl"
        # No benchmark has the modules of another in its memory, or in the processes that it starts.
        code = f"from tests.benchmarks.__main__ import measure; measure({name!r}, {str(found)!r})"
        if exit_code := subprocess.run([sys.executable, "-c", code]).returncode:
            failed[name] = exit_code
        seconds[name] = round(time.monotonic() - started, 1)
        if found.exists():
            lines += map(orjson.loads, found.read_bytes().splitlines())
            found.unlink()
        # After each benchmark: one that is interrupted leaves what the others found.
        (given.out / "results.json").write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
        print(f"{name}: {seconds[name]:.0f} s, {sum(seconds.values()) / 60:.0f} min in all", flush=True)
    print(f"\n{given.out / 'results.json'}")
    contradicted = differences(results, published())
    print(
        "\n".join(contradicted) or "No measured ratio differs from the published one by more than its spread."
    )
    if failed:
        sys.exit(f"These broke off: {', '.join(failed)}")


def measure(name: str, path: str) -> None:
    """Run a benchmark in this process: print every outcome when it is there, and write it as a line of JSON."""
    with Path(path).open("wb") as lines:
        for outcome in import_module(f"tests.benchmarks.{name}").run():
            print(outcome, flush=True)
            lines.write(orjson.dumps(line_of(name, outcome), option=orjson.OPT_APPEND_NEWLINE))
            lines.flush()


if __name__ == "__main__":
    main()
