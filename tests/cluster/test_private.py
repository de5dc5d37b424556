"""The cache, whose files are read back without a manifest, lies where no other user can write."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from cluster.artefacts.errors import StorageError
from cluster.artefacts.private import cache_directory, private_cache


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The cache in the home, and the one among temporary files."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return home / ".cache" / "cloze", temporary / f"cloze-{os.getuid()}"


def test_the_home_is_the_usual_place_and_others_lose_the_right_to_write_there(
    places: tuple[Path, Path],
) -> None:
    usual, _ = places
    usual.mkdir(parents=True)
    usual.chmod(0o777)
    assert private_cache() == usual
    assert stat.S_IMODE(usual.stat().st_mode) == 0o755


def test_where_the_home_is_no_place_it_is_a_directory_of_its_own(places: tuple[Path, Path]) -> None:
    usual, temporary = places
    usual.parent.mkdir()
    usual.write_text("a file")
    assert private_cache() == temporary
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700


def test_a_link_among_temporary_files_is_not_followed(places: tuple[Path, Path], tmp_path: Path) -> None:
    usual, temporary = places
    usual.parent.mkdir()
    usual.write_text("a file")
    (tmp_path / "elsewhere").mkdir()
    temporary.symlink_to(tmp_path / "elsewhere")
    found = private_cache()
    assert found not in (usual, temporary)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_user_is_never_used(places: tuple[Path, Path]) -> None:
    for place in places:
        place.mkdir(parents=True)
        os.chown(place, 4321, 4321)
    assert private_cache() not in places


def test_in_a_directory_that_others_write_to_the_cache_is_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "shared" / f"cloze-{os.getuid()}"
    monkeypatch.setenv("CLOZE_CACHE", str(shared))
    assert cache_directory() == shared
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    shared.chmod(0o777)
    assert cache_directory() == mine
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    mine.rmdir()
    (tmp_path / "elsewhere").mkdir()
    mine.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="belongs to one of them") as caught:
        cache_directory()
    assert "CLOZE_CACHE" in caught.value.next_step
