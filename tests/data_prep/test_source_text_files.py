"""Folders of text files."""

from cluster.artefacts.shard_records import Reject
from data_prep.sources import Skipped
from data_prep.sources.books import TextFilesConfig
from tests.data_prep import reading


def test_every_file_of_a_folder_is_a_document_with_its_own_lines(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_bytes("Żółta róża pachnie, a świt jest bliski.\n".encode("cp1250"))
    (tmp_path / "b" / "poem").write_text("Short lines\nstay lines.\n\n\n\nAlways.\n")
    (tmp_path / "empty").touch()
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    config = TextFilesConfig(name="texts", lang="pl", paths=(str(tmp_path),))
    found = reading.read(config)
    assert [(item.doc_id, item.text) for item in reading.documents(found)] == [
        ("texts:a.txt", "Żółta róża pachnie, a świt jest bliski."),
        ("texts:b/poem", "Short lines\nstay lines.\n\nAlways."),
    ]
    assert found[2] == Skipped("no_text")
    assert isinstance(found[3], Reject)
