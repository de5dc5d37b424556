"""One document shard: what is found in it, what is kept of it, and what the report says."""

import dataclasses

import numpy as np
import pytest

from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText
from data_prep.decontaminate.hits import (
    Tally,
    count_documents,
    find_hits,
    load_hits,
    most_frequent,
)
from data_prep.decontaminate.ngrams import NgramIndex
from data_prep.document import Document
from data_prep.documents import DocumentWriter, read_selected
from data_prep.selection import Selection, load_selection, write_selection
from data_prep.stages.decontaminate import (
    TEXTS_FILE,
    build_index,
    decide,
    identify,
    read_texts,
    write_texts,
)
from tests.data_prep.decontaminate.oracle import search

SECRET = "Where does the old river meet the blue sea under seven bright stars tonight?"
SHORT = "nine small words stand here in one quiet row"
FILLER = "Ünd dann 世界 geht es weiter mit anderen Dingen, "


class Shard:
    """A document shard on disk, and the evaluation texts that it is searched for."""

    def __init__(self, directory, documents, evaluation, removed=(), **settings):
        self.directory = directory
        self.documents, self.before = directory / "documents.parquet", directory / "before.parquet"
        self.texts = [EvaluationText(task, example, text) for task, example, text in evaluation]
        self.settings = DecontaminationConfig(tasks=("any",), **settings)
        with DocumentWriter(self.documents) as writer:
            for number, text in enumerate(documents):
                writer.add(Document(f"doc:{number}", "test", "file", "", "en", text))
        counts = np.zeros(len(documents), dtype=np.int64)
        for row, _ in removed:
            counts[row] += 1
        spans = np.asarray([span for _, span in removed], dtype=np.int64).reshape(-1, 2)
        write_selection(self.before, Selection(np.arange(len(documents)), counts, spans))
        write_texts(lambda settings: iter(self.texts), self.settings, directory / TEXTS_FILE)
        build_index(directory, self.settings)
        self.index = NgramIndex.load(directory, self.settings.shortest)

    def find(self):
        find_hits(
            self.directory / "hits.parquet",
            documents=self.documents,
            selection=self.before,
            index=self.directory,
            index_fingerprint=str(self.directory),
            min_words=self.settings.shortest,
        )
        return load_hits(self.directory / "hits.parquet")

    def decide(self, min_characters=0):
        hits = self.find()
        counts = count_documents(len(self.index.ngrams), [hits])
        np.save(self.directory / "counts.npy", counts)
        self.decision = decide(
            self.directory / "after.parquet",
            documents=self.documents,
            selection=self.before,
            hits=self.directory / "hits.parquet",
            counts=self.directory / "counts.npy",
            settings=self.settings,
            min_characters=min_characters,
        )
        return load_selection(self.directory / "after.parquet")

    def kept(self, min_characters=0):
        """{row: text} as later stages read it."""
        after = self.decide(min_characters)
        tables = read_selected(self.documents, ["text"], after)
        texts = [text for table in tables for text in table["text"].to_pylist()]
        return dict(zip(after.rows.tolist(), texts, strict=True))

    def report(self):
        after = self.decide()
        tally = Tally(read_texts(self.directory))
        overlaps = list(tally.overlaps(self.index, load_hits(self.directory / "hits.parquet"), after))
        return overlaps, tally.summary()


def test_documents_with_an_overlap_are_dropped_and_no_others(tmp_path):
    documents = [FILLER * 9, FILLER + SECRET.upper(), SECRET[:50], f"{SHORT}!", FILLER]
    shard = Shard(tmp_path, documents, [("qa", "1", SECRET), ("qa", "2", SHORT)])
    assert sorted(shard.kept()) == [0, 2, 4]
    assert shard.decision.stats == {"documents_dropped": 2, "documents_cut": 0, "bytes_cut": 0}


def test_hits_are_where_the_oracle_finds_them_in_bytes(tmp_path):
    document = FILLER + SECRET + "\n" + FILLER + SHORT
    shard = Shard(tmp_path, [FILLER, document], [("qa", "1", SECRET), ("qa", "2", SHORT)])
    hits = shard.find()
    expected = {
        (len(document[:start].encode()), len(document[:end].encode()), text)
        for _, start, end, text in search(document, [SECRET, SHORT], 13, 8)
    }
    found = [*zip(hits.starts.tolist(), hits.ends.tolist(), map(shard.index.spell, hits.ngrams), strict=True)]
    assert set(found) == expected
    assert len(found) == len(expected) == 3
    assert hits.rows.tolist() == [1] * 3
    assert hits.doc_ids.to_pylist() == ["doc:1"] * 3


def test_a_text_that_earlier_removals_bring_together_is_found_and_its_place_holds_them(tmp_path):
    start = len(SECRET[:30].encode())
    document = SECRET[:30] + "WWW ADVERTISEMENT WWW " + SECRET[30:] + " " + FILLER
    removed = [(0, (start, start + len("WWW ADVERTISEMENT WWW ")))]
    shard = Shard(tmp_path, [document], [("qa", "1", SECRET)], removed)
    hits = shard.find()
    assert hits.starts[0] == 0
    assert document.encode()[: hits.ends[-1]].decode().endswith("tonight")
    (tmp_path / "whole").mkdir()
    assert len(Shard(tmp_path / "whole", [document], [("qa", "1", SECRET)]).find()) == 0


def test_a_text_that_earlier_stages_removed_is_no_overlap(tmp_path):
    start = len(FILLER.encode())
    removed = [(0, (start, start + len(SECRET)))]
    shard = Shard(tmp_path, [f"{FILLER}{SECRET}{FILLER}"], [("qa", "1", SECRET)], removed)
    assert shard.kept() == {0: FILLER * 2}


def test_cut_leaves_everything_outside_of_the_windows(tmp_path):
    left, right = "Ä世 " * 200, " ünd" * 300
    shard = Shard(tmp_path, [f"{left}{SECRET}{right}"], [("qa", "1", SECRET)], action="cut")
    (text,) = shard.kept().values()
    # The question mark is no part of the overlap, but of the window, which then ends in `ünd` and takes all of it.
    assert text == left[:-200] + right[200:]
    assert {one["action"] for one in shard.report()[0]} == {"cut"}
    assert shard.decision.stats["bytes_cut"] == len(f"{left}{SECRET}{right}".encode()) - len(text.encode())


def test_cut_joins_earlier_removals(tmp_path):
    document = "x " * 300 + SECRET + " y" * 300
    removed = [(0, (10, 20)), (0, (500, 506))]
    shard = Shard(tmp_path, [document], [("qa", "1", SECRET)], removed, action="cut")
    after = shard.decide()
    assert after.spans.tolist()[0] == [10, 20]
    (second,) = after.spans.tolist()[1:]
    assert second[0] == 600 - 200 - 6
    assert second[1] >= 600 + len(SECRET) + 199


@pytest.mark.parametrize(
    ("settings", "min_characters", "kept"),
    [
        ({"max_pieces": 3}, 0, True),
        ({"max_pieces": 2}, 0, False),
        ({}, 1800, True),
        ({}, 1900, False),
        ({"min_piece_characters": 700}, 0, False),
    ],
)
def test_documents_that_cutting_leaves_in_pieces_or_short_are_dropped(
    tmp_path, settings, min_characters, kept
):
    filler = "many words " * 80
    document = f"{filler}{SECRET} {filler}{SECRET} {filler}"
    shard = Shard(tmp_path, [document], [("qa", "1", SECRET)], action="cut", **settings)
    assert (0 in shard.kept(min_characters)) == kept
    assert shard.decision.stats["documents_dropped"] == (not kept)


def test_ngrams_in_too_many_documents_are_no_overlap(tmp_path):
    documents = [f"{number} {SHORT}" for number in range(4)] + [SECRET, SECRET]
    evaluation = [("qa", "1", SECRET), ("qa", "2", SHORT)]
    for most, expected in [(None, []), (4, []), (3, [0, 1, 2, 3])]:
        (tmp_path / str(most)).mkdir()
        shard = Shard(tmp_path / str(most), documents, evaluation, max_documents=most)
        assert sorted(shard.kept()) == expected
    counts = np.load(tmp_path / "3" / "counts.npy")
    assert most_frequent(shard.index, counts)[0] == {"text": SHORT, "documents": 4}


def test_the_report_names_every_planted_text_once_and_nothing_else(tmp_path):
    documents = [FILLER, f"{SECRET} {FILLER} {SHORT}", SHORT, f"{FILLER}{SECRET.lower()}"]
    unseen = "never in any document, whatever the reader of this test may think of it"
    evaluation = [
        *(("qa", "river", SECRET), ("qa", "row", SHORT)),
        *(("copy", "a", SECRET), ("copy", "b", unseen), ("copy", "c", "too short")),
    ]
    overlaps, summary = Shard(tmp_path, documents, evaluation).report()
    assert [(overlap["doc_id"], overlap["task"], overlap["example"]) for overlap in overlaps] == [
        ("doc:1", "copy", "a"),
        ("doc:1", "qa", "river"),
        ("doc:1", "qa", "row"),
        ("doc:2", "qa", "row"),
        ("doc:3", "copy", "a"),
        ("doc:3", "qa", "river"),
    ]
    first = overlaps[0]
    assert (first["byte_start"], first["byte_end"], first["ngrams"], first["action"]) == (
        0,
        len(SECRET) - 1,
        2,
        "dropped",
    )
    assert first["text"] == "where does the old river meet the blue sea under seven bright stars"
    columns = ("examples", "examples_searched", "examples_found", "share_found", "documents")
    counts = {"qa": (2, 2, 2, 1.0, 3), "copy": (3, 2, 1, round(1 / 3, 6), 2)}
    assert summary == {task: dict(zip(columns, own, strict=True)) for task, own in counts.items()}


def test_shards_have_the_same_bytes_every_time(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Shard(tmp_path / name, [SECRET, FILLER * 3], [("qa", "1", SECRET)]).decide()
    for file in ("hits.parquet", "after.parquet", TEXTS_FILE, "ngrams.npy", "occurrences.npy", "codes.npy"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_digest_of_evaluation_texts_tells_names_texts_and_files(tmp_path):
    (tmp_path / "a").write_text("1")
    base = EvaluationText("qa", "1", "text", tmp_path / "a")
    changes = [{"task": "q"}, {"example": "2"}, {"text": "texts"}]
    digests = {identify([dataclasses.replace(base, **change)])[0] for change in ({}, *changes)}
    assert len(digests) == 4
    (entry,) = identify([base, base])[1]
    assert entry.kind == "evaluation-file"
    assert entry.uri == str(tmp_path / "a")
    one, other = EvaluationText("q", "a1", "text"), EvaluationText("qa", "1", "text")
    assert identify([one])[0] != identify([other])[0]
