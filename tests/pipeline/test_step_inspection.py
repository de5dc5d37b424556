"""`cloze data inspect` shows what training reads, true, readable and aligned; what an update read is made again bit for
bit, across phases, epochs, attempts, and changes of settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from cluster.artefacts.errors import MismatchError, ReferenceNotFoundError
from pipeline.inspect.exposure import exposure_of
from pipeline.inspect.sample import InspectedPiece, TokenTexts, inspect_sample
from pipeline.inspect.step import RebuiltStep, inspect_step, rebuild_data_step, rebuild_step
from pipeline.objectives import OBJECTIVES
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.inputs import Inputs
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from tests.conftest import write_store
from tests.pipeline.command import cloze
from tests.pipeline.process_group import start_on_ranks
from tests.pipeline.ranks import make_config, make_run
from tests.pipeline.real_text import write_text_store
from tests.pipeline.test_refusals import open_objective

WORKERS = 2
RESUMED_AT, STEPS = 8, 10
BATCH = (
    "batch.warmup=[{steps: 2, samples: 8}]",
    "batch.phases=[{steps: 5, sequence_length: 16, weights: [1, 0]}]",
)


@dataclass(frozen=True)
class Recorded:
    """A run of two attempts: on two workers to RESUMED_AT, then on one with another rate of masking."""

    run: RunDirectory
    first: Path
    """What the ranks of the first attempt fed to their networks."""
    second: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    place = tmp_path_factory.mktemp("recorded")
    # So small that a step reads most of an epoch.
    stores = [write_store(place / name / "tokens", num_documents=40, seed=n) for n, name in enumerate("ab")]
    mixture = f"data.stores=[{{path: {stores[0]}}}, {{path: {stores[1]}, weight: 2}}]"
    settings = (mixture, *BATCH, "checkpoint.every_steps=4")
    run = make_run(place, stores[0], "recorded", *settings, f"steps={RESUMED_AT}")
    first, second = place / "first", place / "second"
    train_recorded(run, WORKERS, first)
    config = make_config(place, stores[0], *settings, f"steps={STEPS}", objective="{kind: mlm, rate: 0.4}")
    run.reconfigure(config)
    train_recorded(run, 1, second)
    return Recorded(run, first, second)


def train_recorded(run: RunDirectory, workers: int, directory: Path) -> None:
    directory.mkdir()
    start_on_ranks(record, run.path, directory, workers=workers).finish()


def record(run: Path, directory: Path) -> None:
    """Train as any rank does, and write down every argument that the network is trained on."""
    from pipeline.pretrain.__main__ import main

    objective: Any = OBJECTIVES[RunDirectory(run).config().objective.kind]
    build, numbers, rank = objective.build_model, count(), int(os.environ["RANK"])

    def write(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if module.training:
            arrays = {name: value.cpu().numpy() for name, value in kwargs.items()}
            np.savez(recorded_path(directory, rank, next(numbers)), **arrays)

    def build_recorded(*arguments: Any) -> Any:
        model = build(*arguments)
        model.register_forward_pre_hook(write, with_kwargs=True)
        return model

    objective.build_model = build_recorded
    sys.argv[1:] = [str(run)]
    main()


def recorded_path(directory: Path, rank: int, number: int) -> Path:
    """Where the arguments of a rank's `number`-th forward pass of training lie."""
    return directory / f"rank-{rank}-{number:05d}.npz"


def passes(
    directory: Path, workers: int, rebuilt: list[RebuiltStep]
) -> Iterator[tuple[RebuiltStep, int, Path]]:
    """(step, micro-batch, what was recorded of it), given the steps of an attempt in order."""
    numbers = [0] * workers
    for step in rebuilt:
        for micro_batch in range(step.num_micro_batches):
            rank = step.rank_of(micro_batch)
            yield step, micro_batch, recorded_path(directory, rank, numbers[rank])
            numbers[rank] += 1
    assert len(list(directory.iterdir())) == sum(numbers)


def test_the_updates_that_read_each_document_are_found_without_making_them_again(
    recorded: Recorded, tmp_path: Path
):
    run = RunDirectory(tmp_path / recorded.run.path.name)
    shutil.copytree(recorded.run.path, run.path)
    for data_step in (None, 3):
        if data_step is not None:
            SkipLedger(run).add(SkippedStep(at_update=data_step, data_step=data_step, loss=9.0, score=None))
        rebuilt = [rebuild_step(run, step) for step in range(1, STEPS + 1)]
        read: dict[tuple[str, int], list[int]] = defaultdict(list)
        for step in rebuilt:
            for use in inspect_step(step)["documents"]:
                read[use["store"], use["number"]].append(step.step)
        stores = rebuilt[-1].inputs.stores
        wanted = {store.fingerprint: np.arange(store.num_documents) for store in stores}
        places = {store.fingerprint: str(store.path) for store in stores}
        found = exposure_of(run, wanted, tmp_path)
        updates = {
            (places[one["store"]], one["number"]): (one["first_step"], one["last_step"], one["num_updates"])
            for one in found["documents"]
        }
        assert updates == {key: (steps[0], steps[-1], len(steps)) for key, steps in read.items()}
        assert (found["checkpoints"], found["clean_checkpoint"]) == ([8, 10], None)
    late = max(read, key=lambda key: read[key][0])
    (fingerprint,) = (one for one, place in places.items() if place == late[0])
    found = exposure_of(run, {fingerprint: np.array([late[1]])}, tmp_path)
    assert found["documents"][0]["first_step"] == read[late][0] > 1


def test_run_that_went_back_read_what_is_made_again_and_what_was_left_out(tmp_path: Path, store: Path):
    guards = "guards={spike_score: 1.2, spike_window: 8, max_rollbacks: 30}"
    run = make_run(
        tmp_path, store, "back", "steps=16", "checkpoint.every_steps=4", guards, "optimizer.lr=1e-7"
    )
    train_recorded(run, 1, tmp_path / "fed")
    spike = run.events(Event.SPIKE)[-1]
    fed = sorted((tmp_path / "fed").iterdir())
    after = [rebuild_step(run, step) for step in range(spike["back_to"] + 1, 17)]
    taken_back = rebuild_data_step(run, spike["data_step"])
    assert taken_back.step == spike["step"]
    made = [step.batch(number) for step in (taken_back, *after) for number in range(4)]
    for batch, path in zip(made, fed[-len(made) :], strict=True):
        assert_same(batch.inputs, dict(np.load(path)))


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        assert np.array_equal(array, right[name]), name


def test_micro_batch_chooses_its_part(recorded: Recorded):
    step = rebuild_step(recorded.run, 4)
    whole = inspect_step(step)["samples"]
    assert [one["sample"] for one in whole] == list(range(32, 48))
    part = inspect_step(step, 3)
    assert [(one["sample"], one["rank"]) for one in part["samples"]] == [(n, 1) for n in range(44, 48)]
    read = sum(
        stop - start for one in part["samples"] for start, stop in (s["tokens"] for s in one["slices"])
    )
    assert sum(use["tokens"] for use in part["documents"]) == read


def test_command_says_the_same_to_people_and_programs(recorded: Recorded):
    arguments = ["data", "inspect", "--run", str(recorded.run.path), "--step", "6"]
    found = json.loads(cloze(*arguments, "--texts", "--json"))
    assert (found["step"], found["data_step"], len(found["samples"])) == (6, 5, 16)
    assert found["phase"] == {"number": 1, "first_step": 6, "sequence_length": 32, "weights": None}
    assert found["metrics"]["loss"] > 0
    for one in found["samples"]:
        assert one["slices"] == [each for piece in one["pieces"] for each in piece["slices"]]
    named = {each["doc_id"] for one in found["samples"] for each in one["slices"]}
    assert {use["doc_id"] for use in found["documents"]} == named
    printed = cloze(*arguments)
    assert found["documents"][0]["doc_id"] in printed
    assert "phase" in printed
    texts = cloze(*arguments, "--texts")
    assert all(piece["target"] in texts for one in found["samples"] for piece in one["pieces"])


def test_what_does_not_exist_or_changed_since_is_refused(recorded: Recorded, tmp_path: Path):
    for step, said in ((0, "from 1"), (11, "10 steps")):
        with pytest.raises(ReferenceNotFoundError, match=said):
            rebuild_step(recorded.run, step)
    with pytest.raises(ReferenceNotFoundError, match="micro-batch 4"):
        inspect_step(rebuild_step(recorded.run, 4), 4)
    other = write_store(tmp_path / "tokens", num_documents=40, seed=5)
    kept = recorded.run.config().data.stores[1].path
    with pytest.raises(MismatchError, match=str(other)):
        rebuild_step(recorded.run, 4, [f"data.stores=[{{path: {other}}}, {{path: {kept}, weight: 2}}]"])


def test_every_micro_batch_is_made_again_bit_for_bit_with_the_settings_in_force(recorded: Recorded):
    steps = [rebuild_step(recorded.run, step) for step in range(1, STEPS + 1)]
    assert [step.num_micro_batches for step in steps] == [2, 2, *[4] * (STEPS - 2)]
    before, after = steps[:RESUMED_AT], steps[RESUMED_AT:]
    lengths = set()
    made_again = (*passes(recorded.first, WORKERS, before), *passes(recorded.second, 1, after))
    for step, micro_batch, path in made_again:
        made = step.batch(micro_batch).inputs
        assert_same(made, dict(np.load(path)))
        lengths.add((step.phase, made["input_ids"].shape[1]))
    assert lengths == {(0, 16), (1, 32)}
    for own, workers, attempts, file, rate in (
        (before, 2, 1, "config.yaml.1", 0.3),
        (after, 1, 2, "config.yaml", 0.4),
    ):
        for step in own:
            assert (step.world_size, len(step.attempts)) == (workers, attempts)
            assert step.attempts[-1].config_file == file
            assert step.config.objective.rate == rate  # pyright: ignore[reportAttributeAccessIssue]
            assert step.metrics is not None
    # Epochs go on, and mixtures change with the phase.
    found = {step: inspect_step(steps[step - 1])["samples"] for step in (1, 5, 6, STEPS)}
    assert {Path(one["store"]).parent.name for one in found[1] + found[5]} == {"a"}
    assert {Path(one["store"]).parent.name for one in found[6]} == {"a", "b"}
    assert max(one["epoch"] for one in found[STEPS]) > 0


def test_the_samples_of_a_step_are_fed_by_the_length_of_their_texts_with_ul2(tmp_path: Path):
    store = write_store(tmp_path / "tokens")
    settings = ("model.network=encoder_decoder", "model.max_positions=64", "batch.samples=16", "steps=4")
    run = make_run(tmp_path, store, "ul2", *settings, objective="{kind: ul2_mixture_of_denoisers}")
    train_recorded(run, 1, directory := tmp_path / "fed")
    steps = [rebuild_step(run, step) for step in range(1, 5)]
    fed = []
    for step, micro_batch, path in passes(directory, 1, steps):
        assert_same(step.batch(micro_batch).inputs, dict(np.load(path)))
        fed += step.samples(micro_batch).tolist()
    assert sorted(fed) == list(range(len(fed))) != fed


def test_what_was_left_out_moves_the_data_of_later_updates_and_can_still_be_looked_at(
    tmp_path: Path, store: Path
):
    run = make_run(tmp_path, store, "skipping")
    before = {step: rebuild_step(run, step).batch(0).inputs for step in (4, 5, 6)}
    SkipLedger(run).add(SkippedStep(at_update=4, data_step=4, loss=9.0, score=12.0))
    after = {step: rebuild_step(run, step) for step in (4, 5, 6)}
    assert [after[step].data_step for step in (4, 5)] == [3, 5]
    assert_same(after[4].batch(0).inputs, before[4])
    assert_same(after[5].batch(0).inputs, before[6])
    assert [entry.data_step for entry in after[5].skipped] == [4]
    assert after[4].skipped == ()
    left_out = rebuild_data_step(run, 4)
    assert (left_out.step, left_out.spike is not None, left_out.metrics) == (5, True, None)
    assert_same(left_out.batch(0).inputs, before[5])
    for step, rebuilt in after.items():
        again = rebuild_data_step(run, rebuilt.data_step)
        assert (again.step, again.spike) == (step, None)
    arguments = ["data", "inspect", "--run", str(run.path), "--data-step", "4"]
    assert "its loss of 9 was a spike" in cloze(*arguments)
    assert json.loads(cloze(*arguments, "--json"))["left_out"]["loss"] == 9.0


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
        is_swapped = first["tokens"][0] > second["tokens"][0]
        is_wrong = first["doc_id"] != second["doc_id"] if pairs == "nsp" else is_swapped
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


def test_command_shows_a_store_without_its_documents(store_of: Callable[[str], Path]):
    arguments = ["data", "inspect", store_of("tiny"), "--objective", "mlm", "batch.sequence_length=600"]
    shown = cloze(*arguments)
    found = json.loads(cloze(*arguments, "--json"))
    assert f"{len(found)} piece" in shown
    assert found[0].keys() == {"slices", "original", "read", "target", "text", "cells", "relation"}
    words = [word for word in found[0]["original"].split() if word.isalpha() and len(word) > 3]
    assert any(word in shown for word in words)
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
