"""Tokens per second that a decoder and an encoder-decoder write, against transformers with the same weights."""

from __future__ import annotations

import torch

from models.generation.config import GenerationConfig
from models.generation.generate import generate
from tests.benchmarks.compare import Comparison, compare, peer_name
from tests.models.generation_peers import pair

SIZES = {
    "vocab_size": 8192,
    "max_positions": 512,
    "num_layers": 4,
    "hidden_size": 256,
    "num_heads": 4,
    "intermediate_size": 1024,
}
ROWS, PROMPT, MEMORY, NEW_TOKENS = 8, 32, 256, 64
SEARCHES = {"greedy": 1, "4 beams": 4}


def run() -> list[Comparison]:
    """Greedy search and 4 beams with a cache, prompts without padding, no end, fp32, two threads."""
    torch.set_num_threads(2)
    return [
        _compare(f"{what}, {search}", peer, length, num_beams)
        for what, peer, length in (
            (f"GPT-2, 4 layers x 256, {ROWS} x {PROMPT} + {NEW_TOKENS}", "gpt2", PROMPT),
            (f"BART, 4 + 4 layers x 256, {ROWS} x {MEMORY} to {NEW_TOKENS}", "bart", MEMORY),
        )
        for search, num_beams in SEARCHES.items()
    ]


def _compare(what: str, peer: str, length: int, num_beams: int) -> Comparison:
    ours, theirs = pair(peer, 0, **SIZES)
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(4, SIZES["vocab_size"], (ROWS, length), generator=generator)
    settings = {"max_new_tokens": NEW_TOKENS, "num_beams": num_beams, "decoder_start_token_id": 3}
    config = GenerationConfig(**settings)  # pyright: ignore[reportArgumentType]
    mask = torch.ones_like(input_ids)

    def write_ours():
        return generate(ours, input_ids, mask, config).sequences

    def write_theirs():
        return theirs.generate(input_ids, attention_mask=mask, do_sample=False, **settings)  # pyright: ignore[reportCallIssue]

    if not torch.equal(write_ours(), write_theirs()):
        raise ValueError(f"{what}: the two write different tokens, so their speeds cannot be compared")
    peer_of_ours = peer_name("transformers", f"generate of {type(theirs).__name__}")
    return compare(what, peer_of_ours, "tokens", ROWS * NEW_TOKENS, write_ours, write_theirs, 5)
