"""Documents that are taken down: the list of their ids, and the selection without them."""

import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.document import Document
from data_prep.documents import DocumentWriter
from data_prep.selection import Selection, load_selection, write_selection
from data_prep.stages.take_down import TakedownSplit, leave_out, read_ids


def test_a_list_has_an_id_a_line_and_comments(tmp_path):
    path = tmp_path / "takedown.txt"
    path.write_text("# a court's order\nwiki:2\n\n  wiki:1  \nwiki:2\n   # and a comment\nwiki:#3\n")
    assert read_ids(path) == ("wiki:#3", "wiki:1", "wiki:2")


def test_a_list_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(MissingInputError, match="No such file"):
        read_ids(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.txt is not UTF-8 text"):
        read_ids(tmp_path / "binary.txt")


def test_listed_rows_are_left_out_and_the_others_keep_their_spans(tmp_path):
    documents, before, after = (tmp_path / name for name in ("documents.parquet", "before", "after"))
    with DocumentWriter(documents) as writer:
        for number in range(5):
            writer.add(Document(f"d:{number}", "source", "file", "Title", "en", "one two three", {}))
    rows, counts = np.array([0, 1, 3, 4]), np.array([1, 1, 0, 2])
    spans = np.array([[0, 4], [4, 8], [0, 3], [8, 13]])
    write_selection(before, Selection(rows, counts, spans))
    made = leave_out(TakedownSplit(documents, before, ("d:1", "d:2", "d:3", "d:30")), after)
    assert (made.rows, made.stats) == (2, {"documents_taken_down": 2}), "d:2 had been dropped before"
    left = load_selection(after)
    assert left.rows.tolist() == [0, 4]
    assert left.span_counts.tolist() == [1, 2]
    assert left.spans.tolist() == [[0, 4], [0, 3], [8, 13]]
