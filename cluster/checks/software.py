"""Checks of software: Python and packages."""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from cluster.checks.check import Check

_MIN_PYTHON = (3, 11)


def check_python() -> Check:
    """The interpreter's version."""
    found = ".".join(map(str, sys.version_info[:3])) + f" ({sys.executable})"
    if sys.version_info >= _MIN_PYTHON:
        return Check("python", "ok", found)
    needed = ".".join(map(str, _MIN_PYTHON))
    return Check(
        "python", "fail", found, f"install Python {needed} or newer and make a new environment with it"
    )


def check_packages(requirements: list[Requirement] | None = None) -> Check:
    """Installed versions against the declared requirements (by default cloze's own); nothing is imported."""
    needed = _declared_requirements() if requirements is None else requirements
    if not needed:
        return Check("packages", "warn", "no declared requirements were found", "pip install cloze")
    wrong: list[str] = []
    for requirement in needed:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, needs {requirement.specifier}")
    if wrong:
        return Check("packages", "fail", "; ".join(wrong), f"{sys.executable} -m pip install --upgrade cloze")
    main = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("torch", "ray", "deepspeed") if _has(name)
    )
    return Check("packages", "ok", f"all {len(needed)} as declared" + (f"; {main}" if main else ""))


def _declared_requirements() -> list[Requirement]:
    """From `pyproject.toml` beside the packages (a clone, a submitted job), else from the installed cloze."""
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        lines = tomllib.loads(project.read_text())["project"]["dependencies"]
    else:
        try:
            lines = metadata.requires("cloze") or []
        except metadata.PackageNotFoundError:
            lines = []
    try:
        return [
            requirement for requirement in map(Requirement, lines) if "extra" not in str(requirement.marker)
        ]
    except InvalidRequirement as error:
        raise ValueError(str(error)) from error


def _has(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False
