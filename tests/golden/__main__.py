"""Compare what is computed now with the recorded values, or record it:
`python -m tests.golden [--write [--same-version]] [KIND]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.golden.book import KINDS, MEANT, RAISE, compute, differences, read, write


def main() -> int:
    """The exit status: 1 if a value differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the values as they are computed now")
    parser.add_argument(
        "--same-version", action="store_true", help="record identities that change although versions do not"
    )
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"some of {', '.join(KINDS)}; all by default"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    found_any = False
    for kind in arguments.kinds or KINDS:
        with tempfile.TemporaryDirectory() as scratch:
            found = compute(kind, Path(scratch))
        different = list(differences(read(kind), found, KINDS[kind]))
        found_any |= bool(different)
        print(f"{kind}: {'as recorded' if not different else f'{len(different)} values differ'}")
        print("".join(f"  {line}\n" for line in different), end="")
        if arguments.write and not arguments.same_version and any(line.endswith(RAISE) for line in different):
            parser.exit(
                1,
                f"{kind} is not recorded: identities change, and versions do not: "
                f"{RAISE}, or say why it is the same in the commit, and add --same-version.\n",
            )
        if arguments.write:
            write(kind, found)
    if found_any and not arguments.write:
        print(MEANT)
    return int(found_any and not arguments.write)


if __name__ == "__main__":
    # As in tests: two processes with spinning threads on two cores run ten times slower than one.
    os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
    sys.exit(main())
