"""`cloze data inspect` shows what training reads: true, readable, aligned; for every objective and tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from cluster.artefacts.errors import ReferenceNotFoundError
from pipeline.inspect.sample import InspectedPiece, TokenTexts, inspect_sample
from pipeline.objectives import OBJECTIVES
from pipeline.run.inputs import Inputs
from tests.pipeline.command import cloze
from tests.pipeline.real_text import write_text_store
from tests.pipeline.test_refusals import open_objective

KINDS = ("tiny", "tiny-wordpiece", "tiny-words")
PARTIAL = "\N{REPLACEMENT CHARACTER}"
SAMPLES = range(12)


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(kind: str) -> Path:
        return write_text_store(tmp_path_factory.mktemp("stores") / kind, kind, ("en", "de"))

    return make


def opened(path: Path, kind: str, format: str | None = None, **objective: object) -> Inputs:
    return open_objective(path, kind, objective, batch={"format": format})


def text_of(inputs: Inputs, sample: int) -> list[str]:
    """What the tokenizer itself makes of the pieces, without spaces, which are its own affair."""
    packed = inputs.train.batch([sample])
    tokenizer = Tokenizer.from_str(inputs.vocabulary.tokenizer_json)
    pieces = np.split(packed.input_ids.reshape(-1), packed.cu_seqlens[1:-1])
    special = {inputs.vocabulary[role] for role in ("bos", "eos", "pad")}
    found = []
    for piece in pieces:
        if (piece != inputs.vocabulary["pad"]).any():
            ordinary = [int(number) for number in piece if number not in special]
            found.append(squeezed(tokenizer.decode(ordinary, skip_special_tokens=False)))
    return found


def squeezed(text: str) -> str:
    return re.sub(r"\s|##|<s>|</s>|\[CLS\]|\[SEP\]", "", text)


@pytest.mark.parametrize("kind", [kind for kind in OBJECTIVES if kind not in ("distill", "bilm")])
@pytest.mark.parametrize("store", KINDS)
def test_original_is_the_text_and_cells_hold_all_of_it(
    store: str, kind: str, store_of: Callable[[str], Path]
):
    inputs = opened(store_of(store), kind)
    for sample in SAMPLES:
        pieces = inspect_sample(inputs, sample)
        if store != "tiny-words":  # whose decoder does not know pieces of spelled words alone
            assert [squeezed(piece.original) for piece in pieces] == text_of(inputs, sample)
        for piece in pieces:
            assert piece.slices
            if PARTIAL not in "".join(cell.original + cell.read for cell in piece.cells):
                assert "".join(cell.original for cell in piece.cells) == piece.original
                assert "".join(cell.read for cell in piece.cells) == piece.read
            assert all(cell.fate or cell.original == cell.read for cell in piece.cells)


@pytest.mark.parametrize("kind", ["mlm", "span", "rtd"])
@pytest.mark.parametrize("store", KINDS)
def test_target_of_an_encoder_is_what_the_brackets_hide(
    store: str, kind: str, store_of: Callable[[str], Path]
):
    inputs = opened(store_of(store), kind)
    seen: set[str] = set()
    for sample in SAMPLES:
        for piece in inspect_sample(inputs, sample):
            runs = groupby(piece.cells, key=lambda cell: bool(cell.fate))
            hidden = ["".join(cell.original for cell in run) for is_hidden, run in runs if is_hidden]
            if PARTIAL not in "".join(hidden):
                assert piece.target == " …".join(hidden)
            seen |= {cell.fate for cell in piece.cells}
            assert all(cell.original == cell.read for cell in piece.cells if cell.fate == "kept")
    # A few samples hold few spans of the rarer kinds, or none.
    assert {"", "masked"} <= seen <= {"", "masked"} | ({"random", "kept"} if kind != "rtd" else set())


@pytest.mark.parametrize("format", ["contiguous", "sentences"])
@pytest.mark.parametrize("kind", ["t5_span_corruption", "ul2_mixture_of_denoisers"])
def test_spans_of_the_target_fill_the_gaps_of_their_own_piece(
    kind: str, format: str, store_of: Callable[[str], Path]
):
    inputs = opened(store_of("tiny"), kind, format)
    left_out = 0
    for sample in range(400):
        for piece in inspect_sample(inputs, sample):
            left_out += not piece.read
            if piece.read:
                original = piece.original.replace("<s>", "").replace("</s>", "")
                assert uncut(filled(piece)) == uncut(original)
    assert left_out or format == "sentences"


def uncut(text: str) -> str:
    """Without the characters that a gap may have cut between their bytes, which are then shown in parts."""
    return re.sub(r"[^\x00-\x7f]+", "", text)


def filled(piece: InspectedPiece) -> str:
    gap = r"<extra_id_\d+>"
    spans = re.split(gap, piece.target.replace("</s>", ""))[1:]
    parts = re.split(gap, re.sub(r"^\[(NLU|NLG|S2S)\]|</s>", "", piece.read))
    assert len(spans) == len(parts) - 1
    return "".join(part + span for part, span in zip(parts, [*spans, ""], strict=True))


def test_language_tag_stands_apart(store_of: Callable[[str], Path]):
    inputs = opened(store_of("tiny"), "mbart_denoising")
    for piece in inspect_sample(inputs, 0):
        assert re.search(r" (en_XX|de_DE)$", piece.read)
        assert piece.target.endswith(piece.read[-6:])


@pytest.mark.parametrize(("pairs", "names"), [("nsp", ("next", "random")), ("sop", ("in order", "swapped"))])
def test_pair_says_what_its_segments_are_to_each_other(
    pairs: str, names: tuple[str, str], store_of: Callable[[str], Path]
):
    inputs = opened(store_of("tiny-wordpiece"), "mlm", pairs=pairs)
    seen = set()
    for sample in range(40):
        (piece,) = inspect_sample(inputs, sample)
        first, second = piece.slices
        is_swapped = first.tokens[0] > second.tokens[0]
        is_wrong = first.doc_id != second.doc_id if pairs == "nsp" else is_swapped
        assert piece.relation == names[is_wrong]
        seen.add(piece.relation)
    assert seen == set(names)


def test_characters_of_several_tokens_are_readable(store_of: Callable[[str], Path]):
    text = "naïve — 日本語, ½ 😀 and more"
    tokenizer_json = (store_of("tiny") / "tokenizer.json").read_text()
    ids = Tokenizer.from_str(tokenizer_json).encode(text, add_special_tokens=False).ids
    assert len(ids) > len(text)
    assert TokenTexts(tokenizer_json).text(ids) == text


def test_masked_space_is_seen(store_of: Callable[[str], Path]):
    inputs = opened(store_of("tiny"), "mlm")
    seen = 0
    for piece in (piece for sample in range(60) for piece in inspect_sample(inputs, sample)):
        if any(cell.fate == "masked" and cell.original == " " for cell in piece.cells):
            seen += 1
            assert "[masked: ]" in piece.plain()
    assert seen


@pytest.mark.parametrize("kind", [kind for kind in OBJECTIVES if kind not in ("distill", "bilm")])
def test_command_shows_a_store_without_its_documents(kind: str, store_of: Callable[[str], Path]):
    arguments = ["data", "inspect", str(store_of("tiny")), "--objective", kind, "batch.sequence_length=600"]
    shown = cloze(*arguments)
    found = json.loads(cloze(*arguments, "--json"))
    assert f"{len(found)} piece" in shown
    assert found[0].keys() == {"slices", "original", "read", "target", "text", "cells", "relation"}
    words = [word for word in found[0]["original"].split() if word.isalpha() and len(word) > 3]
    assert any(word in shown for word in words) or kind.startswith("mbart")
    assert found[0]["slices"][0]["doc_id"].startswith("docstrings:")


def test_denoised_text_and_words_of_the_bilm_are_their_own_targets(store_of: Callable[[str], Path]):
    for store, kind, format in (("tiny", "bart_denoising", "sentences"), ("tiny-words", "bilm", None)):
        inputs = opened(store_of(store), kind, format)
        pieces = [piece for sample in SAMPLES for piece in inspect_sample(inputs, sample)]
        assert all(piece.target == piece.original for piece in pieces)
        assert kind != "bilm" or all(piece.original == piece.read for piece in pieces)


@pytest.mark.parametrize("sample", [-1, 10**23])
def test_sample_that_no_run_has_is_refused(sample: int, store_of: Callable[[str], Path]):
    with pytest.raises(ReferenceNotFoundError):
        inspect_sample(opened(store_of("tiny"), "mlm"), sample)
