"""An installed package works outside of a clone: it holds the configurations and all that commands read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        *options,
        "--wheel-dir",
        str(folder),
        str(folder / "source"),
    ]
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
    planned = cloze(installed, tmp_path, "pretrain", "gpt-tiny", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "gpt-tiny" in planned.stdout


def test_the_demo_finds_its_configurations_outside_of_a_clone(installed: Path, tmp_path: Path):
    told = "from pipeline.road import demo; print(demo.CONFIGS.is_dir(), demo.__file__)"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", told], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith(f"True {installed}"), done.stderr
