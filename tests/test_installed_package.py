"""An installed package works outside of a clone: it holds the configurations and all that commands read. The files of
requirements fit together."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.road import demo

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the files that git knows, or will know."""
    folder = tmp_path_factory.mktemp("package")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "wheel"]
    command = [*pip, *options, "--wheel-dir", str(folder), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The place of the packages: a wheel of plain Python is its files."""
    place = wheel.parent / "site-packages"
    zipfile.ZipFile(wheel).extractall(place)
    return place


def cloze(installed: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


def test_the_wheel_has_every_file_of_the_packages(wheel: Path):
    packed = set(zipfile.ZipFile(wheel).namelist())
    listed = ["git", "ls-files", "-z", "pipeline", "data_prep", "models", "cluster", "configs", "runbooks"]
    tracked = set(subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")) - {""}
    assert {name for name in tracked if (ROOT / name).is_file()} - packed == set()
    assert not [name for name in packed if name.startswith("tests/")]


def test_configurations_are_listed_and_found_outside_of_a_clone(installed: Path, tmp_path: Path):
    listed = cloze(installed, tmp_path, "configs", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert '"pretrain/gpt-tiny"' in listed.stdout
    assert (installed / demo.CONFIGS.relative_to(ROOT.resolve())).is_dir()
    planned = cloze(installed, tmp_path, "pretrain", "gpt-tiny", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "gpt-tiny" in planned.stdout


def read(name: str) -> dict[str, Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return {canonicalize_name(found.name): found for found in map(Requirement, filter(None, lines))}


def version_of(requirement: Requirement) -> str:
    (pin,) = requirement.specifier
    assert pin.operator == "==", requirement
    return pin.version


def test_the_lock_has_every_declared_package_in_a_version_that_is_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for group in project["optional-dependencies"].values() for one in group]
    locked = read("requirements.lock")
    for declared in map(Requirement, [*project["dependencies"], *extras]):
        assert declared.specifier.contains(version_of(locked[canonicalize_name(declared.name)])), declared


def test_peers_ask_for_no_other_version_of_a_locked_package():
    locked = read("requirements.lock")
    for name, wanted in (read("requirements-bench.txt") | read("requirements-bench-alone.txt")).items():
        assert name not in locked or wanted.specifier.contains(version_of(locked[name])), wanted
