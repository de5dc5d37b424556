"""Greedy and beam search against transformers on the same random weights, samples against the distribution that is
asked for, what holds of a text whoever else writes it, and what is refused."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from models.config import TransformerConfig
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from models.generation.sampling import draw, keep_top_k, keep_top_p, uniform
from models.hf.families import export_model
from models.hf.heads import build_on_meta
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from tests.models.families import small
from tests.models.hf_oracle import LANGUAGE_MODEL_HEADS, built, imported_from
from tests.models.materials import padding

PAD, EOS, START, FEW = 1, 2, 3, 12
"""Special tokens, and a vocabulary so small that searches often end before the longest text."""
TOKENS = st.integers(START + 1, FEW - 1)
SIZES = {"vocab_size": 37, "max_positions": 40, "intermediate_size": 32, "hidden_size": 16, "num_heads": 4}
COMMON = TransformerConfig(**SIZES, num_layers=2)
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT-2", {}),
    "llama": ("LLaMA", {"tie_embeddings": False}),
    "bart": ("BART", {}),
    "mbart": ("mBART", {"scale_embeddings": True}),
    "t5": ("T5", {"relative_buckets": 8, "relative_max_distance": 16}),
}
"""Families, and how their networks differ from `families.small`."""
DECODERS = ("gpt2", "llama")
BASE = GenerationConfig(max_new_tokens=10, decoder_start_token_id=START, eos_token_id=EOS, pad_token_id=PAD)
SAMPLED = replace(BASE, do_sample=True, max_new_tokens=8, eos_token_id=None)
LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=30, unique=True)


def prompts(rows: int = 3, length: int = 5, seed: int = 0, vocab_size: int = 37) -> torch.Tensor:
    """[rows, length] ids of text."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(START + 1, vocab_size, (rows, length), generator=generator)


def move(model: nn.Module, seed: int) -> None:
    """Random weights under which each next token depends on all before it: with the usual small ones, a network that
    shares its embeddings repeats one token for ever."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            of_tokens = any(part in name for part in ("wte", "shared", "embed_tokens", "lm_head"))
            matrix = 0.4 if of_tokens else 3.2 * parameter.shape[-1] ** -0.5
            scale = matrix if parameter.dim() > 1 else 0.1
            noise = scale * torch.randn(parameter.shape, generator=generator)
            # What transformers draws for matrices comes from the process's generator, which others used before.
            parameter.copy_(noise) if parameter.dim() > 1 else parameter.add_(noise)


@cache
def pair(peer: str, seed: int, vocab_size: int = 37) -> tuple[Any, Any]:
    """A network of ours that writes, and the one of transformers with the same weights."""
    family, differences = PEERS[peer]
    config = small(family, **SIZES | differences | {"vocab_size": vocab_size})
    head = LANGUAGE_MODEL_HEADS[config.network]
    written = export_model(build_on_meta(config, head).state_dict(), config, head=head, family=family).config
    architecture = getattr(transformers, written["architectures"][0])
    no_tokens = {"bos_token_id": None, "eos_token_id": None}
    theirs = architecture(architecture.config_class.from_dict(written | no_tokens)).eval()
    move(theirs, seed)
    # Without settings of generation of its own.
    theirs.generation_config = transformers.GenerationConfig()
    return built(imported_from(theirs)), theirs


@st.composite
def batches(draw, left: bool):
    """Ids and mask of up to four rows of random lengths; decoders are padded on the left."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    mask = padding(lengths, max(lengths), "left" if left else "right")
    ids = prompts(len(lengths), max(lengths), draw(st.integers(0, 99)), FEW)
    return ids.where(mask, PAD), mask.long()


@st.composite
def searches(draw):
    """Settings that both understand."""
    num_beams = draw(st.integers(1, 5))
    found = {
        "num_beams": num_beams,
        "num_return_sequences": draw(st.integers(1, num_beams)),
        "max_new_tokens": draw(st.integers(1, 12)),
        "no_repeat_ngram_size": draw(st.integers(0, 3)),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.3, 0.8])),
        "pad_token_id": draw(st.sampled_from([PAD, 0])),
        "eos_token_id": draw(st.none() | TOKENS),
        "forced_bos_token_id": draw(st.none() | TOKENS),
        "forced_eos_token_id": draw(st.none() | TOKENS),
        "suppress_tokens": draw(st.lists(TOKENS, max_size=3)),
    }
    minimum = draw(st.sampled_from(["min_length", "min_new_tokens"]))
    found[minimum] = draw(st.integers(0, found["max_new_tokens"]))
    if num_beams > 1:
        found["length_penalty"] = draw(st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.0]))
        found["early_stopping"] = draw(st.sampled_from([True, False, "never"]))
    forced = {found["forced_bos_token_id"], found["forced_eos_token_id"]}
    assume(not forced & set(found["suppress_tokens"]))
    assume(found["eos_token_id"] is None or found["eos_token_id"] != found["forced_bos_token_id"])
    # Else there are fewer sequences than are asked for.
    assume(found["max_new_tokens"] > 2 or not forced - {None} or found["num_return_sequences"] == 1)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", PEERS)
@given(data=st.data())
def test_search_writes_what_transformers_writes(peer, data):
    input_ids, mask = data.draw(batches(left=peer in DECODERS))
    search = data.draw(searches())
    # Few tokens that may not come twice are soon used up.
    size = 37 if search["no_repeat_ngram_size"] == 1 else FEW
    ours, theirs = pair(peer, data.draw(st.integers(0, 3)), size)
    start = {} if peer in DECODERS else {"decoder_start_token_id": START}
    config = search | start | {"suppress_tokens": tuple(search["suppress_tokens"])}
    generated = generate(ours, input_ids, mask, GenerationConfig(**config))
    expected = theirs.generate(
        input_ids,
        attention_mask=mask,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **search,
        **start,
    )
    sequences = expected.sequences
    if search["pad_token_id"] == 0 and search["num_beams"] > 1:
        # There, beam search repeats the end instead of a padding token that is 0, as T5's is.
        behind = torch.arange(sequences.shape[1]) >= generated.lengths[:, None]
        assert set(sequences[behind].tolist()) <= {0, search["eos_token_id"]}
        sequences = sequences.masked_fill(behind, 0)
    assert generated.sequences.tolist() == sequences.tolist()
    if search["num_beams"] > 1:
        torch.testing.assert_close(generated.scores, expected.sequences_scores, atol=1e-4, rtol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("peer", ["gpt2", "bart"])
@pytest.mark.parametrize("how", [{}, {"do_sample": True, "temperature": 0.5, "top_k": 9}], ids=str)
def test_scores_of_one_text_are_what_the_network_gives_to_the_whole_sequence(peer, how):
    model, input_ids = pair(peer, 0)[0], prompts()
    config = replace(BASE, length_penalty=0.6, eos_token_id=None, **how)
    generated = generate(model, input_ids, config=config)
    read = [generated.sequences] if peer in DECODERS else [input_ids, generated.sequences]
    table = model.logits(*read)[:, :-1].log_softmax(-1)
    gains = table.gather(2, generated.sequences[:, 1:, None])[..., 0][:, generated.prompt_length - 1 :]
    torch.testing.assert_close(generated.scores, gains.sum(1) / 10**0.6, atol=1e-4, rtol=0)


def with_local_attention() -> CausalLanguageModel:
    local = {"positions": "rotary", "num_layers": 3, "local_window": 3, "global_every": 3}
    model = CausalLanguageModel(replace(COMMON, network="decoder", **local))
    move(model, 1)
    return model.eval()


@pytest.mark.parametrize("make", [lambda: pair("gpt2", 2)[0], with_local_attention], ids=["global", "local"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_prefix_is_read_both_ways_and_seen_from_everywhere(make, num_beams):
    model = make()
    ids, mask = prompts(3, 6, 3), padding([6, 4, 1], 6, "left")
    config = replace(BASE, eos_token_id=None, num_beams=num_beams)
    generated = generate(model, ids, mask, config, read_both_ways=True)
    for row, first in enumerate((0, 2, 5)):
        sequence = generated.sequences[row : row + 1, first:]
        with torch.no_grad():
            logits = model.logits(sequence, prefix_lengths=torch.tensor([6 - first]))
        chosen = sequence[0, 6 - first :, None]
        gains = logits[0, 5 - first : -1].log_softmax(-1)
        torch.testing.assert_close(
            generated.scores[row], gains.gather(1, chosen).mean(), rtol=1e-4, atol=1e-4
        )
        assert num_beams > 1 or chosen[:, 0].equal(gains.argmax(-1))
    one_way = generate(model, ids, mask, config)
    assert one_way.sequences.tolist() != generated.sequences.tolist()


def test_dropout_is_off_only_while_writing():
    model = pair("gpt2", 0)[0]
    expected = generate(model, prompts(), config=BASE)
    model.train()
    try:
        assert generate(model, prompts(), config=BASE).sequences.tolist() == expected.sequences.tolist()
        assert all(module.training for module in model.modules())
    finally:
        model.eval()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 9},
        {"top_p": 0.8},
        {"top_k": 20, "top_p": 0.7},
        {"temperature": 3.0, "top_p": 0.5},
    ],
    ids=str,
)
def test_tokens_have_the_probabilities_of_the_network(change):
    model, config = pair("gpt2", 0)[0], replace(SAMPLED, **change, max_new_tokens=1)
    tokens = generate(model, prompts(1).expand(4000, -1), config=config).sequences[:, -1]
    with torch.no_grad():
        logits = model.logits(prompts(1))[0, -1:] / change.get("temperature", 1.0)
    logits = keep_top_k(logits, change["top_k"]) if "top_k" in change else logits
    logits = keep_top_p(logits, change["top_p"]) if "top_p" in change else logits
    wanted, found = logits[0].softmax(-1), tokens.bincount(minlength=37) / len(tokens)
    # Five deviations of each share, and two draws of the rarest; none of what is impossible.
    allowed = 5 * (wanted * (1 - wanted) / len(tokens)).sqrt() + 2 / len(tokens) * (wanted > 0)
    assert ((found - wanted).abs() <= allowed).all()


@given(logits=LOGITS, count=st.integers(1, 40))
def test_top_k_keeps_the_highest(logits, count):
    kept = keep_top_k(torch.tensor([logits]), count)[0]
    highest = sorted(logits, reverse=True)[:count]
    assert sorted(kept[kept > -torch.inf].tolist(), reverse=True) == highest


@given(logits=LOGITS, share=st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_hold_the_share(logits, share):
    kept = keep_top_p(torch.tensor([logits]), share)[0] > -torch.inf
    probabilities = torch.tensor(logits).softmax(-1)
    assert probabilities[kept].min() >= probabilities[~kept].max() if not kept.all() else True
    assert probabilities[kept].sum() >= share - 1e-5
    assert kept.sum() == 1 or probabilities[kept].sum() - probabilities[kept].min() < share + 1e-5


@given(logits=LOGITS, banned=st.data(), number=st.floats(0, 1, exclude_max=True))
def test_what_is_impossible_is_never_drawn(logits, banned, number):
    scores = torch.tensor([logits])
    places = banned.draw(st.sets(st.integers(0, len(logits) - 1), max_size=len(logits) - 1))
    scores[0, list(places)] = -torch.inf
    assert int(draw(scores, torch.tensor([number], dtype=torch.float64))) not in places


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-48])
def test_ends_of_the_unit_interval_are_tokens(number):
    scores = torch.full((1, 50_000), -torch.inf)
    scores[0, 100:40_000] = torch.randn(39_900, generator=torch.Generator().manual_seed(0))
    token = int(draw(scores, torch.tensor([number], dtype=torch.float64)))
    assert token == (100 if number == 0 else 39_999)


@pytest.mark.parametrize("peer", ["gpt2", "bart"])
@pytest.mark.parametrize("copies", [1, 3])
def test_text_of_a_row_does_not_depend_on_its_batch(peer, copies):
    """Neither on the other rows, nor on the number of those after it, nor on padding."""
    model = pair(peer, 0)[0]
    rows = [prompts(1, length, length)[0] for length in (2, 7, 4)]
    config = replace(SAMPLED, num_return_sequences=copies, eos_token_id=9)

    def written(texts: list[torch.Tensor], longest: int) -> list[list[int]]:
        pads = [text.new_full((longest - len(text),), PAD) for text in texts]
        left = peer == "gpt2"
        batch = torch.stack(
            [torch.cat((pad, text) if left else (text, pad)) for pad, text in zip(pads, texts, strict=True)]
        )
        return generate(model, batch, batch != PAD, config).continuations()

    together = written(rows, 7)
    for place, others in ((2, [rows[1], rows[0], rows[2]]), (2, [rows[0], rows[0], rows[2]]), (0, rows[:1])):
        apart = written(others, max(map(len, others)))
        own = slice(place * copies, (place + 1) * copies)
        assert apart[own] == together[own]
    assert len({tuple(text) for text in together}) > 2 * copies


def test_seed_row_sample_and_token_all_matter():
    assert len({uniform(seed, row, sample, 0) for seed in (0, 1) for row in (0, 1) for sample in (0, 1)}) == 8
    model, config = pair("gpt2", 0)[0], replace(SAMPLED, num_return_sequences=2)
    batches = [generate(model, prompts(1), config=replace(config, seed=seed)) for seed in range(3)]
    assert len({tuple(text) for batch in batches for text in batch.continuations()}) == 6
    # All tokens are about equally probable, so that each says which number drew it.
    (hot,) = generate(model, prompts(1), config=replace(SAMPLED, temperature=1e6)).continuations()
    assert len(set(hot)) > 4


@pytest.mark.parametrize(
    ("peer", "given", "key"),
    [
        ("gpt2", {"config": GenerationConfig(max_length=5)}, "max_length is 5"),
        ("gpt2", {"config": GenerationConfig(max_new_tokens=36)}, "max_new_tokens .* 35"),
        ("gpt2", {"config": GenerationConfig(max_length=41)}, "max_length .* 40"),
        ("gpt2", {"config": GenerationConfig(max_length=8, min_length=9)}, "min_length"),
        ("gpt2", {"config": GenerationConfig(eos_token_id=37)}, "eos_token_id"),
        ("bart", {}, "decoder_start_token_id"),
        ("bart", {"config": BASE, "read_both_ways": True}, "read_both_ways"),
        ("gpt2", {"input_ids": torch.tensor([[4, 50]])}, "input_ids is 50"),
        ("gpt2", {"input_ids": torch.tensor([4, 5])}, "input_ids"),
        ("gpt2", {"attention_mask": padding([4, 5, 5], 5)}, "attention_mask"),
        ("gpt2", {"attention_mask": padding([5, 0, 5], 5)}, "row 1"),
        ("gpt2", {"attention_mask": padding([5, 5], 5)}, "attention_mask"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_key(peer, given, key):
    with pytest.raises(ValueError, match=key):
        generate(pair(peer, 0)[0], **{"input_ids": prompts()} | given)


def test_network_that_does_not_write_is_refused():
    with pytest.raises(ValueError, match="MaskedLanguageModel"):
        generate(MaskedLanguageModel(COMMON), prompts())


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("kind", [CausalLanguageModel, SequenceToSequence])
def test_damaged_weights_are_refused(how, kind):
    model = kind(replace(COMMON, network="decoder" if kind is CausalLanguageModel else "encoder_decoder"))
    with torch.no_grad():
        next(model.decoder.transformer.layers.parameters())[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        generate(model, prompts(), config=replace(BASE, **how))
