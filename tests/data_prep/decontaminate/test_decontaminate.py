"""Decontamination: what a plain loop finds and nothing else, what is kept of a document shard, what is reported."""

import dataclasses
import errno
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.artefacts.errors import StorageError
from cluster.artefacts.storage import storage_errors
from data_prep.decontaminate import ngrams
from data_prep.decontaminate.config import EvaluationText
from data_prep.decontaminate.edits import EditedText, cut_short_pieces, widen
from data_prep.decontaminate.hits import REPORT_FILE
from data_prep.decontaminate.ngrams import NgramIndex, save_array
from data_prep.documents import DocumentStore
from data_prep.layout import DECONTAMINATION, DOCUMENTS
from data_prep.selection import load_selection, remove_spans
from data_prep.stages.decontaminate import decontaminate, identify
from data_prep.stages.deduplicate import deduplicate
from data_prep.text.words import split_words
from tests.data_prep.decontaminate.oracle import search
from tests.data_prep.dedup.corpus import without_ray, workspace, write_documents

TEXT = st.text(st.sampled_from("ab é世\n\U0001f600."), min_size=1, max_size=60)


def cuts_of(length):
    """Ranges in so many characters, ascending and disjoint."""
    edges = st.lists(st.integers(0, length), max_size=6).map(lambda found: sorted(set(found)))
    return edges.map(lambda found: list(zip(found[::2], found[1::2], strict=False)))


@given(TEXT, st.data())
def test_cutting_keeps_everything_else_byte_for_byte(text, data):
    removed = data.draw(cuts_of(len(text)))
    bytes_before = [[len(text[:place].encode()) for place in span] for span in removed]
    spans = np.asarray(bytes_before, dtype=np.int64).reshape(-1, 2)
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
    if cuts:
        starts, ends = np.asarray(cuts).T
        back = edited.from_document(*edited.to_document(starts, ends))
        assert (back[0].tolist(), back[1].tolist()) == (starts.tolist(), ends.tolist())


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error():
    with pytest.raises(StorageError) as raised, storage_errors(Path("/dev/full")):
        save_array(Path("/dev/full"), np.zeros(1 << 20))
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC


SECRET = "Where does the old river meet the blue sea under seven bright stars tonight?"
SHORT = "nine small words stand here in one quiet row"
FILLER = "Ünd dann 世界 geht es weiter mit anderen Dingen, "


NOTICE = "A notice that stands in two documents"


def decontaminated(out, documents, evaluation, dedup="none", min_characters=1, **settings):
    """({row: text} of the documents that are kept, the overlaps that are reported, the manifest's statistics)."""
    settings = {"tasks": ["any"], "data": out, **settings}
    write_documents(out, [documents])
    job = workspace(out, 1, dedup, min_characters=min_characters, decontaminate=settings)
    texts = [EvaluationText(*name.split(), text) for name, text in evaluation]
    with without_ray():
        manifest = decontaminate(job, deduplicate(job), lambda settings: iter(texts))
    (selection,) = (out / DECONTAMINATION).glob("selection-*")
    kept = DocumentStore(out / DOCUMENTS, out / DECONTAMINATION).read(0)
    report = [orjson.loads(line) for line in (out / DECONTAMINATION / REPORT_FILE).read_bytes().splitlines()]
    rows = load_selection(selection).rows.tolist()
    return dict(zip(rows, [each.text for each in kept], strict=True)), report, manifest.stats


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
    kept, _, stats = decontaminated(tmp_path / "some", documents, [("qa 1", SECRET), ("qa 2", SHORT)])
    assert sorted(kept) == [0, 2, 4]
    assert (stats["documents_dropped"], stats["documents_cut"], stats["bytes_cut"]) == (3, 0, 0)
    assert len(decontaminated(tmp_path / "none", documents, [])[0]) == 6


PARAGRAPHS = {"documents": False, "paragraphs": {"scope": "corpus", "min_length": 20, "max_removed": 1.0}}


def test_a_text_that_earlier_removals_bring_together_is_found_and_its_place_holds_them(tmp_path):
    documents = [NOTICE, f"{SECRET[:30]}\n{NOTICE}\n{SECRET[30:]} {FILLER}"]
    _, report, _ = decontaminated(tmp_path / "joined", documents, [("qa 1", SECRET)], PARAGRAPHS)
    (overlap,) = report
    assert overlap["byte_start"] == 0
    assert documents[1].encode()[: overlap["byte_end"]].decode().endswith("tonight")
    assert decontaminated(tmp_path / "apart", documents, [("qa 1", SECRET)])[1] == []


def test_a_text_that_earlier_stages_removed_is_no_overlap(tmp_path):
    documents = [SECRET, f"{FILLER}\n{SECRET}\n{FILLER}!"]
    kept, _, _ = decontaminated(tmp_path, documents, [("qa 1", SECRET)], PARAGRAPHS)
    assert kept == {1: FILLER}


@pytest.mark.parametrize("removed", ["", f"{NOTICE}\n"], ids=["nothing", "a paragraph"])
def test_cut_leaves_what_is_outside_of_the_windows_and_of_earlier_removals(tmp_path, removed):
    left, right = "Ä世 " * 200, " ünd" * 300
    documents = [NOTICE, f"{removed}{left}{SECRET}{right}"]
    kept, report, stats = decontaminated(tmp_path, documents, [("qa 1", SECRET)], PARAGRAPHS, action="cut")
    # The question mark is no part of the overlap, but of the window, which then ends in `ünd` and takes all of it.
    assert kept == {0: NOTICE, 1: left[:-200] + right[200:]}
    assert {one["action"] for one in report} == {"cut"}
    assert stats["bytes_cut"] == len(f"{left}{SECRET}{right}".encode()) - len(kept[1].encode())


@pytest.mark.parametrize(
    ("settings", "min_characters", "is_kept"),
    [
        ({"max_pieces": 3}, 1, True),
        ({"max_pieces": 2}, 1, False),
        ({}, 1800, True),
        ({}, 1900, False),
        ({"min_piece_characters": 700}, 1, False),
        ({"min_piece_characters": 600, "max_pieces": 2}, 1, False),
    ],
)
def test_documents_that_cutting_leaves_in_pieces_or_short_are_dropped(
    tmp_path, settings, min_characters, is_kept
):
    filler = "many words " * 80
    document = f"{filler}{SECRET} {filler}{SECRET} {filler}"
    options = {"min_characters": min_characters, "action": "cut", **settings}
    kept, _, stats = decontaminated(tmp_path, [document], [("qa 1", SECRET)], **options)
    assert (0 in kept) == is_kept
    assert stats["documents_dropped"] == (not is_kept)


def test_ngrams_in_too_many_documents_are_no_overlap(tmp_path):
    documents = [f"{number} {SHORT}" for number in range(4)] + [SECRET, SECRET]
    evaluation = [("qa 1", SECRET), ("qa 2", SHORT)]
    for most, expected in [(None, []), (4, []), (3, [0, 1, 2, 3])]:
        kept, _, stats = decontaminated(tmp_path / str(most), documents, evaluation, max_documents=most)
        assert sorted(kept) == expected
    assert stats["most_frequent"][0] == {"text": SHORT, "documents": 4}


def test_the_report_names_every_planted_text_once_and_nothing_else(tmp_path):
    documents = [FILLER, f"{FILLER}{SECRET} {FILLER} {SHORT}", SHORT, f"{FILLER}{SECRET.lower()}"]
    unseen = "never in any document, whatever the reader of this test may think of it"
    evaluation = [
        ("qa river", SECRET),
        ("qa row", SHORT),
        ("copy a", SECRET),
        ("copy b", unseen),
        ("copy c", "too short"),
    ]
    _, report, stats = decontaminated(tmp_path, documents, evaluation)
    found = [(overlap["doc_id"][-1], f"{overlap['task']} {overlap['example']}") for overlap in report]
    assert found == [
        *(("1", "copy a"), ("1", "qa river"), ("1", "qa row")),
        *(("2", "qa row"), ("3", "copy a"), ("3", "qa river")),
    ]
    assert report[0] == report[0] | {
        "byte_start": len(FILLER.encode()),
        "byte_end": len(FILLER.encode()) + len(SECRET) - 1,
        "ngrams": 2,
        "action": "dropped",
        "text": "where does the old river meet the blue sea under seven bright stars",
    }
    columns = ("examples", "examples_searched", "examples_found", "share_found", "documents")
    counts = {"qa": (2, 2, 2, 1.0, 3), "copy": (3, 2, 1, round(1 / 3, 6), 2)}
    assert stats["tasks"] == {task: dict(zip(columns, own, strict=True)) for task, own in counts.items()}


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
