"""`python -m tests.benchmarks [--out DIRECTORY] [NAME ...]`: run benchmarks, each in a process of its own.

Without a name, those of README's table; `all` names all.

Prints their outcomes, and writes `results.json` and `index.html` with ratios, spreads, versions and the machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import orjson

from tests.benchmarks.page import render
from tests.benchmarks.readme import differences, published
from tests.benchmarks.results import Results, machine, versions

ALL = "all"


def main() -> None:
    """Run what was asked for, or README's."""
    from tests.benchmarks.one import BENCHMARKS, IN_README

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--out", type=Path, default=Path("bench"), help="directory of results.json and index.html"
    )
    given = parser.parse_args()
    names = list(BENCHMARKS) if given.names == [ALL] else given.names or list(IN_README)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(
            f"no benchmark is named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}, and {ALL}"
        )
    given.out.mkdir(parents=True, exist_ok=True)
    different, failed = list[str](), list[str]()
    for results in measured(names):
        # After each benchmark: one that is interrupted leaves what the others found.
        different, failed = differences(results, published()), list(results.failed)
        (given.out / "results.json").write_bytes(orjson.dumps(asdict(results), option=orjson.OPT_INDENT_2))
        (given.out / "index.html").write_text(render(results, different), encoding="utf-8")
        minutes, last = sum(results.seconds.values()) / 60, list(results.seconds)[-1]
        print(f"{last}: {results.seconds[last]:.0f} s, {minutes:.0f} min in all", flush=True)
    print(f"\n{given.out / 'index.html'}")
    print("\n".join(different) or "No measured ratio differs from README's by more than its spread.")
    if failed:
        sys.exit(f"These broke off: {', '.join(failed)}")


def measured(names: list[str]) -> Iterator[Results]:
    """The outcomes of benchmarks, one after another: after each, of all so far."""
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
            yield Results(began, before, versions(), dict(seconds), found, dict(failed))


if __name__ == "__main__":
    main()
