"""Hashes of document ids."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from data_prep.hashing import as_fraction, hash_strings

GOLDEN = 0x9E3779B97F4A7C15
IDS = st.lists(st.text(max_size=30), max_size=30)


def test_hashes_are_the_same_on_every_machine():
    hashes = hash_strings(pa.array(["", "a", "wikipedia:12", "Straße"])).tolist()
    assert hashes == [12035550249420947055, 11698956431250217857, 7823835577389093233, 14321367742493233995]


def test_hundred_thousand_similar_ids_have_different_and_uniform_hashes():
    ids = pa.array([f"wikipedia:{number}" for number in range(100_000)])
    hashes = hash_strings(ids)
    assert len(np.unique(hashes)) == len(ids)
    shares = np.histogram(as_fraction(hashes), bins=20, range=(0, 1))[0] / len(ids)
    assert np.abs(shares - 0.05).max() < 0.005


def test_salts_give_independent_draws():
    ids = pa.array([f"book:{number}" for number in range(50_000)])
    one, other = as_fraction(hash_strings(ids)) < 0.1, as_fraction(hash_strings(ids, salt=1)) < 0.1
    assert abs((one & other).mean() - 0.01) < 0.003


@given(IDS, st.integers(0, 2**63), st.integers(0, 30), st.integers(0, 30))
def test_hash_is_that_of_its_definition(ids: list[str], salt: int, start: int, stop: int):
    chosen = pa.array(ids, type=pa.string())[start:stop]
    assert hash_strings(chosen, salt).tolist() == [_defined(text.encode(), salt) for text in ids[start:stop]]


def _defined(text: bytes, salt: int) -> int:
    """The hash in unbounded integers."""
    total = sum((byte + 1) * (_mixed(place) | 1) for place, byte in enumerate(text)) + len(text) * GOLDEN
    return _mixed(total % 2**64 ^ _mixed(salt))


def _mixed(value: int) -> int:
    value = (value + GOLDEN) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31
