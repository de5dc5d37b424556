"""The files of requirements fit together: what is declared, what is locked, and the peers of the benchmarks."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PEERS, ALONE, LOCK = (
    ROOT / name for name in ("requirements-bench.txt", "requirements-bench-alone.txt", "requirements.lock")
)


def read(path: Path) -> dict[str, Requirement]:
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return {canonicalize_name(found.name): found for found in map(Requirement, filter(None, lines))}


def version_of(requirement: Requirement) -> str:
    (pin,) = requirement.specifier
    assert pin.operator == "==", requirement
    return pin.version


def test_the_lock_has_every_declared_package_in_a_version_that_is_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for group in project["optional-dependencies"].values() for one in group]
    locked = read(LOCK)
    for declared in map(Requirement, [*project["dependencies"], *extras]):
        assert declared.specifier.contains(version_of(locked[canonicalize_name(declared.name)])), declared


def test_peers_ask_for_no_other_version_of_a_locked_package():
    locked = read(LOCK)
    for name, wanted in (read(PEERS) | read(ALONE)).items():
        assert name not in locked or wanted.specifier.contains(version_of(locked[name])), wanted
