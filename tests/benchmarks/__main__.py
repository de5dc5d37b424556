"""`python -m tests.benchmarks [--out DIRECTORY] [NAME ...]`: run benchmarks, each in a process of its own.

Prints their outcomes, and writes `results.json` and `index.html` with ratios, spreads, versions and the machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import orjson

from tests.benchmarks.page import render
from tests.benchmarks.readme import differences, published
from tests.benchmarks.results import Results, machine, versions


def main() -> None:
    """Run what was asked for, or all."""
    from tests.benchmarks.one import BENCHMARKS

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--out", type=Path, default=Path("bench"), help="directory of results.json and index.html"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    results = measured(given.names or list(BENCHMARKS))
    different = differences(results, published())
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "results.json").write_bytes(orjson.dumps(asdict(results), option=orjson.OPT_INDENT_2))
    (given.out / "index.html").write_text(render(results, different), encoding="utf-8")
    print(f"\n{sum(results.seconds.values()) / 60:.0f} min; {given.out / 'index.html'}")
    print("\n".join(different) or "No measured ratio differs from README's by more than its spread.")
    if results.failed:
        sys.exit(f"These broke off: {', '.join(results.failed)}")


def measured(names: list[str]) -> Results:
    """The outcomes of benchmarks, one after another."""
    began, before = datetime.now(UTC).isoformat(timespec="seconds"), machine()
    seconds, failed = dict[str, float](), dict[str, int]()
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "lines"
        lines.touch()
        for name in names:
            started = time.monotonic()
            code = subprocess.run([sys.executable, "-m", "tests.benchmarks.one", name, str(lines)]).returncode
            seconds[name] = round(time.monotonic() - started, 1)
            if code:
                failed[name] = code
        found = [orjson.loads(line) for line in lines.read_bytes().splitlines()]
    return Results(began, before, versions(), seconds, found, failed)


if __name__ == "__main__":
    main()
