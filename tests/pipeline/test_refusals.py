"""What does not go together is refused before anything starts: by a typed error that names the key and the remedy."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from cluster.artefacts.errors import (
    ClozeError,
    ConfigError,
    ExportError,
    MismatchError,
    MissingInputError,
    ReferenceNotFoundError,
    StorageError,
)
from cluster.artefacts.storage import commit, staging_directory
from models.config import TransformerConfig
from models.hf.directory import save_hf_directory
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from pipeline.checkpoint.references import resolve_model
from pipeline.config.loading import validate
from pipeline.objectives import OBJECTIVES
from pipeline.run.config import PretrainConfig
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.samples.noise import Noise
from pipeline.samples.packed import SINGLE_FORMATS
from pipeline.tune.export import export
from tests.conftest import write_store
from tests.published_networks import PRESETS

TINY: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 32,
    "max_positions": 64,
}
ELMO: dict[str, Any] = {"filters": [[1, 8], [2, 8]], "projection_size": 8, "cell_size": 16, "num_layers": 1}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def plain(store: Path, kind: str = "mlm", **changes: Any) -> dict[str, Any]:
    """A configuration of the objective with a network that carries it; changes are of its sections."""
    network = OBJECTIVES[kind].NETWORKS[0]
    sections: dict[str, dict[str, Any]] = {
        "data": {"stores": [{"path": str(store)}], "held_out": 0.1},
        "model": {"network": network, **(ELMO if network == "elmo" else TINY)},
        "objective": {"kind": kind},
        "batch": {"sequence_length": 64, "samples": 8, "micro_batch_size": 4},
        "optimizer": {"lr": 1e-3},
    }
    for name, values in changes.items():
        sections[name] |= values
    return {"name": "run", "steps": 10, **sections}


def opened(store: Path, kind: str = "mlm", **changes: Any) -> Inputs:
    config = validate(PretrainConfig, plain(store, kind, **changes), "run.yaml")
    return open_inputs(config, verify=False, resolve=resolve_model)


def refusal(content: Any, error: type[ClozeError] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        validate(PretrainConfig, content, "run.yaml")
    return str(caught.value)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_objective_is_refused_on_every_network_that_cannot_carry_it(kind: str, store: Path):
    for network in {"encoder", "decoder", "encoder_decoder", "elmo"} - set(OBJECTIVES[kind].NETWORKS):
        content = plain(store, kind)
        content["model"] = {"network": network, **(ELMO if network == "elmo" else TINY)}
        if kind == "distill":
            content["objective"]["teacher"] = "some-run"
        message = refusal(content)
        assert f"objective.kind = '{kind}'" in message or f"objective.kind = {kind}" in message
        assert f"needs model.network {OBJECTIVES[kind].NETWORKS[0]}, not {network}" in message


@pytest.mark.parametrize("kind", ["mlm", "clm", "bart_denoising", "mbart_denoising", "t5_span_corruption"])
def test_text_longer_than_the_positions_is_refused_in_every_phase(kind: str, store: Path):
    phases = [{"steps": 1, "sequence_length": 32}, {"steps": 1, "sequence_length": 65}]
    assert "batch.phases.1.sequence_length" in refusal(plain(store, kind, batch={"phases": phases}))
    message = refusal(plain(store, kind, batch={"sequence_length": 65}))
    assert "set model.max_positions to 65 or more" in message
    opened(store, kind, batch={"sequence_length": 65}, model={"positions": "rotary"})


def test_targets_longer_than_the_positions_are_refused(store: Path):
    message = refusal(plain(store, "t5_span_corruption", objective={"rate": 0.9}))
    assert "texts of up to 316 tokens" in message
    assert "set model.max_positions to 316 or more" in message


@pytest.mark.parametrize("format", SINGLE_FORMATS)
@pytest.mark.parametrize(
    "kind", ["bart_denoising", "mbart_denoising", "t5_span_corruption", "ul2_mixture_of_denoisers"]
)
def test_no_piece_has_more_tokens_than_the_configuration_was_checked_for(kind: str, format: str, store: Path):
    inputs = opened(store, kind, batch={"format": format}, model={"max_positions": 128})
    most = max(64, inputs.config.reading.positions)
    for first in range(0, 60, 4):
        batch = inputs.corrupt(inputs.train.batch(np.arange(first, first + 4)), Noise.of("train", 1)).inputs
        sizes = []
        for ids, boundaries in (("input_ids", "cu_seqlens"), ("decoder_input_ids", "decoder_cu_seqlens")):
            rows, length = batch[ids].shape
            ends = batch[boundaries] if boundaries in batch else np.arange(rows + 1) * length
            sizes.append(np.diff(ends))
            assert sizes[-1].max() <= most
        # What the decoder has can look at something.
        assert (sizes[0][sizes[1] > 0] > 0).all()


@given(rate=st.floats(0.001, 0.9999), mean=st.floats(1, 1e6), length=st.integers(8, 600))
def test_raw_lengths_are_the_longest_that_fit(rate: float, mean: float, length: int):
    from pipeline.objectives import t5_span_corruption as t5

    denoisers = t5._denoisers(t5.SpanCorruption(rate=rate, mean_span_length=mean))
    raw = t5.raw_length(denoisers, length)
    assert raw == 3 or t5.longest(denoisers, 0, raw)[0] <= length
    assert t5.longest(denoisers, 0, raw + 1)[0] > length


@pytest.mark.parametrize("segments", [0, 1])
@pytest.mark.parametrize("kind", ["mlm", "span"])
def test_pairs_need_two_segments(kind: str, segments: int, store: Path):
    changes = {"objective": {"pairs": "nsp"}, "model": {"num_segments": segments}}
    assert f"model.num_segments = '{segments}'".replace("'", "") in refusal(
        plain(store, kind, **changes)
    ).replace("'", "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": {"kind": "mml"}}, ("objective.kind", "did you mean mlm?")),
        ({"objective": {}}, ("objective", "`kind`, one of", "span")),
        ({"model": {"network": "encodr"}}, ("model.network", "did you mean encoder?")),
        ({"model": "bert"}, ("model = 'bert'", "`network`, one of decoder")),
        ({"model": {"hiden_size": 3}}, ("model.hiden_size", "did you mean hidden_size?")),
        ({"model": {"num_heads": 0}}, ("model: num_heads must be",)),
        ({"optimizer": {"lr": float("inf")}}, ("optimizer.lr", "finite")),
        ({"batch": {"samples": 7, "micro_batch_size": 2}}, ("batch.samples = 7", "6 and 8")),
    ],
)
def test_misspelt_and_impossible_settings_are_named_with_the_nearest(
    change: dict[str, Any], said: tuple[str, ...], store: Path
):
    message = refusal(plain(store) | change)
    assert all(part in message for part in said), message
    assert "(top level)" not in message


def test_settings_that_do_not_go_together_are_all_named_at_once(store: Path):
    changes = {"batch": {"sequence_length": 99, "format": "segment_pair"}, "model": {"network": "decoder"}}
    message = refusal(plain(store, **changes) | {"schedule": {"warmup_steps": 10}})
    assert "4 problems" in message
    for key in ("objective.kind", "batch.sequence_length", "batch.format", "schedule.warmup_steps"):
        assert f"\n  {key} = " in message


def test_vocabulary_that_is_too_small_is_refused_with_the_size_that_is_needed(store: Path):
    with pytest.raises(MismatchError, match=r"model.vocab_size is 100.*need 300"):
        opened(store, "t5_span_corruption", model={"vocab_size": 100})
    assert opened(store, "t5_span_corruption", model={"vocab_size": 301}).model.vocab_size == 301


def test_missing_store_is_named(tmp_path: Path):
    with pytest.raises(MissingInputError, match="no token store"):
        opened(tmp_path / "nowhere")


def test_bilm_is_refused_at_once_where_tokens_are_not_spelled_words(store: Path):
    with pytest.raises(MismatchError, match="word_lexicon"):
        opened(store, "bilm")


def test_generator_that_cannot_be_is_refused_at_once(store: Path):
    shape = {"positions": "rotary", "num_heads": 4}
    with pytest.raises(ConfigError, match=r"objective\.generator"):
        opened(store, "rtd", model=shape, objective={"generator": {"hidden_share": 0.3}})


@pytest.fixture
def write_teacher(tmp_path: Path) -> Callable[..., Path]:
    def write(preset: str, store: Path, **changes: Any) -> Path:
        from dataclasses import replace

        shape = replace(PRESETS[preset], **TINY, vocab_size=200, **changes)
        network = (CausalLanguageModel if shape.network == "decoder" else MaskedLanguageModel)(shape)
        init_weights(network, 1)
        save_hf_directory(tmp_path / "teacher", network.state_dict(), shape)
        (tmp_path / "teacher" / "tokenizer.json").write_bytes((store / "tokenizer.json").read_bytes())
        return tmp_path / "teacher"

    return write


def test_teacher_that_does_not_exist_or_is_no_encoder_is_refused_at_once(
    write_teacher: Callable[..., Path], store: Path, tmp_path: Path
):
    with pytest.raises(ReferenceNotFoundError, match="no run nobody"):
        opened(store, "distill", objective={"teacher": "nobody", "runs_dir": str(tmp_path)})
    with pytest.raises(MismatchError, match="only encoders are distilled"):
        opened(store, "distill", objective={"teacher": str(write_teacher("gpt2", store))})


def test_teacher_with_other_tokens_is_refused_at_once(write_teacher: Callable[..., Path], store: Path):
    teacher = write_teacher("roberta-base", store)
    content = {"teacher": str(teacher), "start_from_teacher": False}
    shape = {"max_positions": 64}
    assert opened(store, "distill", objective=content, model=shape).vocabulary.size == 200
    file = teacher / "tokenizer.json"
    file.write_text(file.read_text().replace('"w7"', '"seven"'))
    with pytest.raises(MismatchError, match="other tokens"):
        opened(store, "distill", objective=content, model=shape)


@pytest.mark.parametrize("kind", ["mlm", "mbart_denoising"])
def test_documents_that_give_no_sample_are_refused_before_training(kind: str, tmp_path: Path):
    small = write_store(tmp_path / "small", num_documents=2)
    with pytest.raises(ConfigError, match=r"data\.held_out"):
        opened(small, kind, batch={"sequence_length": 8}).require_samples()


def test_pairs_of_documents_with_one_sentence_are_refused_before_training(store: Path):
    with pytest.raises(ConfigError, match="has two sentences"):
        opened(store, objective={"pairs": "nsp"}, model={"num_segments": 2}).require_samples()


def test_unknown_language_is_refused_before_training(store: Path):
    stores = {"stores": [{"path": str(store), "langs": ["xx"]}]}
    with pytest.raises(ConfigError, match="it has en"):
        opened(store, data=stores).require_samples()


@pytest.fixture
def one_special_token(tmp_path: Path) -> Path:
    """A store like those of GPT-2's published vocabulary: one token begins, ends and pads."""
    original = write_store(tmp_path / "original", vocab_size=60)
    tokenizer = (original / "tokenizer.json").read_text()
    for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        tokenizer = tokenizer.replace(f'"{name}"', '"<|endoftext|>"' if name == "<s>" else f'"w{name[1:-1]}"')
    staging = staging_directory(tmp_path / "tokens", "test")
    staging.mkdir()
    for file in original.iterdir():
        if file.name != "manifest.json":
            (staging / file.name).write_bytes(file.read_bytes())
    (staging / "tokenizer.json").write_text(tokenizer)
    facts = {"vocab_size": 60, "special_tokens": dict.fromkeys(("bos", "pad", "eos", "unk"), 0)}
    commit(staging, tmp_path / "tokens", "tokens", config=facts)
    return tmp_path / "tokens"


@pytest.mark.parametrize("kind", ["clm", "prefix_lm"])
def test_end_of_text_is_learned_though_the_tokenizer_pads_with_it(kind: str, one_special_token: Path):
    inputs = opened(one_special_token, kind, batch={"format": "doc_sentences"})
    assert inputs.vocabulary["pad"] == 60
    packed = inputs.train.batch(np.arange(4))
    batch = inputs.corrupt(packed, Noise.of("train", 1)).inputs
    ends = np.flatnonzero(np.diff(packed.cu_seqlens) > 0)
    is_text = packed.input_ids.reshape(-1)[packed.cu_seqlens[:-1][ends]] != 60
    assert (batch["targets"] == 0).sum() == is_text.sum()
    assert not (batch["targets"] == 60).any()


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    """A RoBERTa that transformers could have saved."""
    shape = TransformerConfig(**TINY, vocab_size=60)
    network = MaskedLanguageModel(shape)
    init_weights(network, 1)
    save_hf_directory(tmp_path / "hf", network.state_dict(), shape)
    words = [*SPECIAL, *(f"w{number}" for number in range(55))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIAL))
    (tmp_path / "hf" / "tokenizer.json").write_text(tokenizer.to_str())
    return tmp_path / "hf"


def make_nan(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def cut(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:300])


DAMAGES: dict[str, tuple[Callable[[Path], object], type[ClozeError], str]] = {
    "NaN": (make_nan, MismatchError, "NaN or infinite values"),
    "half the weights": (cut("model.safetensors"), MismatchError, "model.safetensors is damaged"),
    "half the configuration": (cut("config.json"), MismatchError, "config.json is not JSON"),
    "half the tokenizer": (cut("tokenizer.json"), MismatchError, "tokenizer.json is not JSON"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), ReferenceNotFoundError, "no tokenizer.json"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), MismatchError, "no model.safetensors"),
    "no configuration": (lambda d: (d / "config.json").unlink(), ReferenceNotFoundError, "nor config.json"),
    "no model in the tokenizer": (
        lambda d: (d / "tokenizer.json").write_text("{}"),
        MismatchError,
        "is no tokenizer",
    ),
    "nothing to pad with": (
        lambda d: (d / "tokenizer.json").write_text(
            '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
        ),
        MismatchError,
        "no token to pad with",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_directory_is_refused_and_nothing_is_left(damage: str, hugging_face: Path, tmp_path: Path):
    do, error, said = DAMAGES[damage]
    do(hugging_face)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=said):
        export(str(hugging_face), tmp_path / "out", runs_dir=tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """What a full disk is to a program: it cannot write any further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size_bytes", [100, 4000])
def test_export_onto_a_disk_without_space_leaves_nothing(size_bytes: int, hugging_face: Path, tmp_path: Path):
    before = sorted(tmp_path.iterdir())
    with largest_file(size_bytes), pytest.raises(StorageError, match="Cannot write"):
        export(str(hugging_face), tmp_path / "out", runs_dir=tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_options_that_have_no_meaning_are_refused(hugging_face: Path, tmp_path: Path):
    before = sorted(tmp_path.iterdir())
    options: list[dict[str, Any]] = [{"part": "generator"}, {"trial": "sst2-pretrained-1"}]
    for option in options:
        with pytest.raises(MismatchError, match=r"leave (it )?out"):
            export(str(hugging_face), tmp_path / "out", runs_dir=tmp_path, **option)
    for family in ("XLNet", "T5", ""):
        with pytest.raises(ExportError):
            export(str(hugging_face), tmp_path / "out", runs_dir=tmp_path, family=family)
    assert sorted(tmp_path.iterdir()) == before


def test_empty_directory_is_filled_and_nothing_put_beside_it(hugging_face: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    before = sorted(tmp_path.iterdir())
    export(str(hugging_face), tmp_path / "out", runs_dir=tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_directory_that_is_no_model_is_told_what_it_lacks(store: Path, tmp_path: Path):
    with pytest.raises(ReferenceNotFoundError, match=r"neither trainer\.json.*config\.json.*run\.json"):
        resolve_model(str(store), tmp_path)
