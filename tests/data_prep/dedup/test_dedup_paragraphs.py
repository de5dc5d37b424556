"""Repeated paragraphs: what counts as the same, which are removed, and which documents go with them."""

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from tests.data_prep.dedup.corpus import MIN_CHARACTERS, dedup, kept_texts

MIN_LENGTH = 3
LINES = st.sampled_from(
    ["", "one line", "One, LINE!", "öne liné 1", "one line 2", "xy", "日本語の文", "日本語の文。", "z" * 9]
)
TEXTS = st.lists(LINES, min_size=1, max_size=5).map("\n".join).filter(bool)
SHARDS = st.lists(st.lists(TEXTS, max_size=4), min_size=1, max_size=3)


def normalise(line):
    """The letters and digits of a line, in lower case, without accents."""
    kept = []
    for character in unicodedata.normalize("NFD", line).lower():
        if unicodedata.category(character)[0] in "LN":
            kept.append(character)
    return "".join(kept)


def remove_in_memory(shards, scope, max_removed):
    seen, result = set(), []
    for texts in shards:
        result.append([])
        for text in texts:
            if scope == "within":
                seen = set()
            kept = []
            for line in text.splitlines(keepends=True):
                key = normalise(line)
                if len(key) < MIN_LENGTH or key not in seen:
                    kept.append(line)
                if len(key) >= MIN_LENGTH:
                    seen.add(key)
            left = "".join(kept).strip("\n") if len(kept) < len(text.splitlines()) else text
            lost = 1 - len(left) / len(text)
            is_edited = len(kept) < len(text.splitlines())
            if not is_edited or (len(left) >= MIN_CHARACTERS and lost <= max_removed):
                result[-1].append(left)
    return result


@given(SHARDS, st.sampled_from(["within", "corpus"]), st.sampled_from([0.3, 0.6, 1.0]))
@example(
    [["one line\nöne liné\nzzzzzzzzz", "zzzzzzzzz\nxy\nxy\nabcde"], ["One line\nfghij klmno pqrst"]],
    "corpus",
    0.6,
)
def test_paragraphs_are_those_of_a_loop_over_all_texts(tmp_path_factory, shards, scope, max_removed):
    out = tmp_path_factory.mktemp("paragraphs")
    paragraphs = {"scope": scope, "min_length": MIN_LENGTH, "max_removed": max_removed}
    manifest = dedup(out, shards, {"documents": False, "paragraphs": paragraphs})
    expected = remove_in_memory(shards, scope, max_removed)
    assert kept_texts(out, len(shards)) == expected
    dropped = sum(map(len, shards)) - sum(map(len, expected))
    assert manifest.stats["paragraph_duplicates"] == dropped
    assert manifest.stats["documents_kept"] == sum(map(len, expected))


def test_what_is_removed_is_a_line_with_its_break(tmp_path):
    first = "Subscribe to our newsletter today\nA first text of its own, long enough.\n"
    second = "A second text of its own, long enough.\n\nSUBSCRIBE to our newsletter, today!\nIt goes on here."
    manifest = dedup(tmp_path / "out", [[first], [second]], {"paragraphs": "corpus"})
    expected = "A second text of its own, long enough.\n\nIt goes on here."
    assert kept_texts(tmp_path / "out", 2) == [[first], [expected]]
    assert manifest.stats["removed_paragraphs"] == 1
    assert manifest.stats["removed_paragraph_bytes"] == len("SUBSCRIBE to our newsletter, today!\n")


def test_paragraphs_of_equal_documents_are_not_missed_in_the_first_of_them(tmp_path):
    text = "The same long paragraph in both.\nAnd another paragraph after it."
    settings_ = {"documents": True, "paragraphs": {"scope": "corpus", "max_removed": 0.9}}
    other = text.splitlines()[0] + "\nSomething else that is not anywhere."
    manifest = dedup(tmp_path / "out", [[text, text, other]], settings_)
    assert kept_texts(tmp_path / "out", 1) == [[text, "Something else that is not anywhere."]]
    assert (manifest.stats["duplicates"], manifest.stats["removed_paragraphs"]) == (1, 1)
