"""What the settings of a preparation refuse before anything is read."""

import pytest
from pydantic import ValidationError

from tests.data_prep.conftest import small_config


def test_weights_that_do_not_name_the_sources_are_refused(tmp_path):
    with pytest.raises(ValidationError, match="names wiki; the sources are wiki, books"):
        small_config(tmp_path, tmp_path / "out", tokenizer={"weights": {"wiki": 1}})
    small_config(tmp_path, tmp_path / "out", tokenizer={"weights": {"wiki": 1, "books": 0}})
