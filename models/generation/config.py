"""Settings of text generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.fields import POSITIVE, WHOLE, Rule, Settings, at_least, is_number


@dataclass(frozen=True)
class GenerationConfig(Settings):
    """Settings of the search for a continuation. Names and meanings are as in transformers' `generate`; the defaults
    search greedily up to the end of the network's positions.
    """

    max_new_tokens: int | None = None
    """Tokens to write at most; instead of `max_length`."""
    max_length: int | None = None
    """Tokens of the longest sequence, prompt included; None, with `max_new_tokens` None too, takes the network's
    `max_positions`."""
    min_new_tokens: int = 0
    """Tokens to write before the end may come."""
    min_length: int = 0
    """Tokens of the shortest sequence, prompt included, end excluded."""
    num_beams: int = 1
    """Sequences that beam search extends at once; 1 is greedy search."""
    num_return_sequences: int = 1
    """Sequences returned per prompt; more than 1 with beam search (at most `num_beams`) or sampling."""
    length_penalty: float = 1.0
    """Scores are divided by (tokens written) ** `length_penalty`: above 0 favours long sequences, below 0 short."""
    early_stopping: bool | Literal["never"] = False
    """When a prompt's beam search ends: true, with `num_beams` finished sequences; false, when the best unfinished one
    would score lower than the finished ones if it ended now; never, when it would at any length up to the maximum."""
    no_repeat_ngram_size: int = 0
    """No n-gram of this many tokens is written twice, nor again after the prompt; 0 allows all. Padding before a
    prompt counts as tokens, as in transformers."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative scores of tokens that the sequence has already (Keskar et al.
    2019, section 4.1); 1 does nothing."""
    do_sample: bool = False
    """Draw tokens at random instead of searching for the most probable ones."""
    temperature: float = 1.0
    """Divides the scores before a token is drawn; > 0."""
    top_k: int | None = None
    """Draw from this many most probable tokens (Fan et al. 2018, section 5.1); None from all."""
    top_p: float | None = None
    """Draw from the fewest most probable tokens that hold this much probability (Holtzman et al. 2020, section 3.1);
    in (0, 1]; None from all."""
    seed: int = 0
    """Seed of all draws. A draw is a function of (seed, row, index of the returned sequence, token index)."""
    decoder_start_token_id: int | None = None
    """First token of an encoder-decoder's decoder."""
    eos_token_id: int | None = None
    """Token that ends a sequence; None never ends before the maximum length."""
    pad_token_id: int | None = None
    """Fills sequences after their end; None takes `eos_token_id`."""
    forced_bos_token_id: int | None = None
    """Token after a prompt of one token (BART; the language tag of mBART)."""
    forced_eos_token_id: int | None = None
    """Last token of a sequence that reaches the maximum length (BART)."""
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that are never written."""

    @property
    def token_ids(self) -> dict[str, int]:
        """The special tokens that are set, by name."""
        names = (
            "decoder_start_token_id",
            "eos_token_id",
            "pad_token_id",
            "forced_bos_token_id",
            "forced_eos_token_id",
        )
        tokens = {name: value for name in names if (value := getattr(self, name)) is not None}
        return tokens | {f"suppress_tokens[{n}]": token for n, token in enumerate(self.suppress_tokens)}

    @property
    def fill_token_id(self) -> int:
        """The token that fills a sequence after its end."""
        given = (token for token in (self.pad_token_id, self.eos_token_id) if token is not None)
        return next(given, 0)

    def rules(self) -> Mapping[str, Rule]:
        from_zero = ("min_new_tokens", "min_length", "no_repeat_ngram_size", *self.token_ids)
        remedy = " (for the most probable token set do_sample: false)" if self.do_sample else ""
        return dict.fromkeys(from_zero, at_least(0)) | {
            "seed": WHOLE,
            "length_penalty": Rule(is_number, "a finite number"),
            "temperature": POSITIVE._replace(said=f"{POSITIVE.said}{remedy}"),
            "top_p": Rule(lambda value: is_number(value) and 0 < value <= 1, "a probability in (0, 1]"),
            "suppress_tokens": Rule(
                lambda tokens: all(map(at_least(0).allows, tokens)), "whole numbers of at least 0"
            ),
        }

    def fit_problems(self) -> list[str]:
        problems = []
        if self.max_length is not None and self.max_new_tokens is not None:
            problems.append("max_length and max_new_tokens are both set; leave one of them out")
        if self.do_sample and self.num_beams > 1:
            problems.append(
                f"do_sample draws every sequence by itself; set num_beams to 1, not {self.num_beams}, "
                "or do_sample to false"
            )
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            problems.append(
                f"num_return_sequences ({self.num_return_sequences}) must not exceed num_beams "
                f"({self.num_beams}); raise num_beams, or set do_sample: true"
            )
        forced = (self.forced_bos_token_id, self.forced_eos_token_id)
        if both := sorted({token for token in forced if token is not None} & set(self.suppress_tokens)):
            problems.append(
                f"suppress_tokens holds {both}, which a forced token needs; leave one of them out"
            )
        return problems
