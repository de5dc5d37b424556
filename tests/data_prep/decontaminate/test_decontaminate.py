"""Decontamination: what a plain loop finds and nothing else, what is kept of a document shard, what is reported."""

import dataclasses
import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts.errors import StorageError
from cluster.artefacts.storage import storage_errors
from data_prep.decontaminate import ngrams
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText
from data_prep.decontaminate.edits import EditedText, cut_short_pieces, widen
from data_prep.decontaminate.hits import Tally, count_documents, find_hits, load_hits, most_frequent
from data_prep.decontaminate.ngrams import NgramIndex, save_array
from data_prep.document import Document
from data_prep.documents import DocumentWriter, read_selected
from data_prep.ragged import Ragged
from data_prep.selection import Selection, load_selection, remove_spans, write_selection
from data_prep.stages.decontaminate import TEXTS_FILE, build_index, decide, identify, read_texts, write_texts
from data_prep.text.words import split_words
from pipeline.tasks.evaluation_sets import evaluation_texts
from tests.data_prep.decontaminate.oracle import ngrams_of, search, words_of

TEXT = st.text(st.sampled_from("ab é世\n\U0001f600."), min_size=1, max_size=60)


@st.composite
def edited_documents(draw):
    """A document and spans of it, on character boundaries, ascending and disjoint."""
    text = draw(TEXT)
    edges = sorted(set(draw(st.lists(st.integers(0, len(text)), max_size=6))))
    places = [len(text[:edge].encode()) for edge in edges[: len(edges) // 2 * 2]]
    return text, np.asarray(places, dtype=np.int64).reshape(-1, 2)


@st.composite
def cuts_of(draw, length):
    edges = sorted(set(draw(st.lists(st.integers(0, length), max_size=6))))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(edited_documents(), st.data())
def test_cutting_keeps_everything_else_byte_for_byte(document, data):
    text, spans = document
    edited = EditedText(text, spans)
    assert edited.text == remove_spans(text, spans)
    cuts = data.draw(cuts_of(len(edited.text)))
    after = edited.spans_without(cuts)
    bounds = [0, *(place for cut in cuts for place in cut), len(edited.text)]
    kept = (edited.text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
    assert remove_spans(text, after) == "".join(kept).strip("\n")
    flat = after.reshape(-1).tolist()
    assert flat == sorted(set(flat))
    before, now = ({byte for span in own.tolist() for byte in range(*span)} for own in (spans, after))
    assert before <= now


@given(edited_documents(), st.data())
def test_places_in_document_and_edited_text_lead_to_each_other(document, data):
    edited = EditedText(*document)
    ranges = [(start, end) for start, end in data.draw(cuts_of(len(edited.text))) if start < end]
    starts = np.asarray([start for start, _ in ranges], dtype=np.int64)
    ends = np.asarray([end for _, end in ranges], dtype=np.int64)
    first, last = edited.to_document(starts, ends)
    back = edited.from_document(first, last)
    assert (back[0].tolist(), back[1].tolist()) == (starts.tolist(), ends.tolist())
    data = document[0].encode()
    for place, start in zip(first.tolist(), starts.tolist(), strict=True):
        character = edited.text[start].encode()
        assert data[place : place + len(character)] == character


@pytest.mark.parametrize(
    ("text", "starts", "ends", "window", "cuts"),
    [
        ("aaaa bbbb cccc dddd eeee ffff", [10], [14], 7, [(0, 25)]),
        ("aaaa bbbb cccc dddd eeee ffff", [10], [14], 0, [(10, 15)]),
        ("one two three\nfour five", [8], [13], 0, [(8, 13)]),
        ("a b c d e f g h", [0, 6], [1, 7], 3, [(0, 10)]),
        ("a b c d e f g h", [0, 12], [1, 13], 1, [(0, 2), (11, 14)]),
    ],
    ids=["window", "no window", "line break stays", "touching", "apart"],
)
def test_windows_end_between_words_and_are_one_cut_where_they_touch(text, starts, ends, window, cuts):
    assert [tuple(cut) for cut in widen(text, np.asarray(starts), np.asarray(ends), window)] == cuts


def test_short_pieces_are_cut_too_and_all_pieces_counted():
    assert cut_short_pieces(100, [(10, 20), (25, 30), (90, 100)], 10) == ([(10, 30), (90, 100)], 3)
    assert cut_short_pieces(10, [(0, 10)], 0) == ([(0, 10)], 0)
    assert cut_short_pieces(10, [(4, 6)], 5) == ([(0, 10)], 2)


TWENTY = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrst")


def found_in(documents, evaluation, ngram=13, min_words=8):
    """Per document the set that the oracle gives."""
    index = NgramIndex.build(evaluation, ngram, min_words)
    split = split_words(documents)
    ngrams, firsts, counts = index.find(split)
    results = [set() for _ in documents]
    columns = split.text_of(firsts), ngrams, split.places[firsts], split.ends[firsts + counts - 1]
    for document, ngram, start, end in zip(*(column.tolist() for column in columns), strict=True):
        texts = index.occurrences["text"][index.occurrences["ngram"] == ngram].tolist()
        results[document] |= {(text, start, end, index.spell(ngram)) for text in texts}
    return results


@given(
    st.lists(st.text(st.sampled_from("aB c'.\n世"), max_size=40), max_size=5),
    st.lists(st.text(st.sampled_from("Ab c-,\n世"), max_size=25), max_size=6),
    st.integers(2, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
)
@example([TWENTY[:60], TWENTY[60:], TWENTY.upper().replace(" ", ",\n - ")], [TWENTY, "x", TWENTY], (13, 8))
@example([TWENTY], ["too short"], (13, 8))
def test_search_finds_what_a_plain_loop_finds(documents, evaluation, sizes):
    expected = [search(document, evaluation, *sizes) for document in documents]
    assert found_in(documents, evaluation, *sizes) == expected


def test_equal_hashes_of_different_words_are_no_hit(monkeypatch):
    monkeypatch.setattr(ngrams, "mix", np.zeros_like)
    documents = ["w x y z", "a b c d", "c d e f a"]
    assert found_in(documents, ["a b c d"], 4, 2) == [set(), {(0, 0, 7, "a b c d")}, set()]


@pytest.mark.corpora
def test_real_articles_hold_the_parts_of_squad_that_a_plain_loop_finds(corpora):
    config = DecontaminationConfig(tasks=("squad1",), data=corpora)
    evaluation = list(dict.fromkeys(text.text for text in evaluation_texts(config)))
    text = (corpora / "wikipedia" / "extracted-en" / "wiki_01").read_text(encoding="utf-8")
    articles = [article for article in text.split("</doc>") if article.strip()]
    wanted = {ngram for text in evaluation for ngram in ngrams_of(text, 13, 8)}
    expected = set()
    for number, article in enumerate(articles):
        plain, starts, ends = zip(*words_of(article), strict=True)
        for length in range(8, 14):
            for i in range(len(plain) - length + 1):
                if (ngram := plain[i : i + length]) in wanted:
                    expected.add((number, starts[i], ends[i + length - 1], " ".join(ngram)))
    found = found_in(articles, evaluation)
    assert {(number, *hit[1:]) for number, hits in enumerate(found) for hit in hits} == expected
    assert len(expected) > 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error():
    with pytest.raises(StorageError) as raised, storage_errors(Path("/dev/full")):
        save_array(Path("/dev/full"), np.zeros(1 << 20))
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC


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
        own = ([span for row, span in removed if row == number] for number in range(len(documents)))
        spans = Ragged.of([np.array(each, dtype=np.int64).reshape(-1, 2) for each in own])
        write_selection(self.before, Selection(np.arange(len(documents)), spans))
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
    twelve, thirteen = (" ".join(SECRET.split()[1:count]) for count in (13, 14))
    documents = [
        FILLER * 9,
        FILLER + SECRET.upper(),
        f"{twelve} moons",
        f"{SHORT}!",
        FILLER,
        f"{thirteen} moons",
    ]
    shard = Shard(tmp_path, documents, [("qa", "1", SECRET), ("qa", "2", SHORT)])
    assert sorted(shard.kept()) == [0, 2, 4]
    assert shard.decision.stats == {"documents_dropped": 3, "documents_cut": 0, "bytes_cut": 0}
    (tmp_path / "nothing").mkdir()
    assert len(Shard(tmp_path / "nothing", documents, []).kept()) == 6


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
    first, second = shard.decide().spans.values.tolist()
    assert (first, second[0]) == ([10, 20], 600 - 200 - 6)
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
    documents = [FILLER, f"{FILLER}{SECRET} {FILLER} {SHORT}", SHORT, f"{FILLER}{SECRET.lower()}"]
    unseen = "never in any document, whatever the reader of this test may think of it"
    named = [
        ("qa river", SECRET),
        ("qa row", SHORT),
        ("copy a", SECRET),
        ("copy b", unseen),
        ("copy c", "too short"),
    ]
    evaluation = [(*name.split(), text) for name, text in named]
    overlaps, summary = Shard(tmp_path, documents, evaluation).report()
    found = [" ".join(overlap[key] for key in ("doc_id", "task", "example")) for overlap in overlaps]
    assert found == [
        *("doc:1 copy a", "doc:1 qa river", "doc:1 qa row", "doc:2 qa row", "doc:3 copy a", "doc:3 qa river")
    ]
    assert overlaps[0] == overlaps[0] | {
        "byte_start": len(FILLER.encode()),
        "byte_end": len(FILLER.encode()) + len(SECRET) - 1,
        "ngrams": 2,
        "action": "dropped",
        "text": "where does the old river meet the blue sea under seven bright stars",
    }
    columns = ("examples", "examples_searched", "examples_found", "share_found", "documents")
    counts = {"qa": (2, 2, 2, 1.0, 3), "copy": (3, 2, 1, round(1 / 3, 6), 2)}
    assert summary == {task: dict(zip(columns, own, strict=True)) for task, own in counts.items()}


def test_the_digest_of_evaluation_texts_tells_names_texts_and_files(tmp_path):
    (tmp_path / "a").write_text("1")
    base = EvaluationText("qa", "1", "text", tmp_path / "a")
    changes = [{"task": "q"}, {"example": "2"}, {"text": "texts"}]
    digests = {identify([dataclasses.replace(base, **change)])[0] for change in ({}, *changes)}
    assert len(digests) == 4
    (entry,) = identify([base, base])[1]
    assert (entry.kind, entry.uri) == ("evaluation-file", str(tmp_path / "a"))
    one, other = EvaluationText("q", "a1", "text"), EvaluationText("qa", "1", "text")
    assert identify([one])[0] != identify([other])[0]
