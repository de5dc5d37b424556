"""Settings and examples of instruction tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from models.config import NetworkConfig
from pipeline.tune.forms.instructions.template import ChatTemplate, Turn
from pipeline.tune.task import TaskConfig, check_positions

if TYPE_CHECKING:
    from models.hf.heads import Head
    from pipeline.tune.text_reading import Reading
    from pipeline.tune.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that end with a response."""

    id: str
    turns: tuple[Turn, ...]
    place: str = ""
    """File and line, for messages."""

    @property
    def response(self) -> str:
        """The last response."""
        return self.turns[-1].content


class InstructionTaskConfig(TaskConfig):
    """Settings that tasks of instruction tuning share."""

    template: ChatTemplate = ChatTemplate()
    """Markers around the turns; exports carry them as `chat_template`."""
    packed: bool = True
    """Whether a decoder reads several conversations in a row of up to `training.max_length` tokens, which do not see
    each other; `training.batch_size` counts rows. An encoder-decoder reads one response at a time."""
    max_response_length: int = Field(default=256, ge=8)
    """Tokens of a response with its end, where an encoder-decoder learns it or `write_responses` writes it; longer ones
    are cut. A decoder learns responses up to `training.max_length`."""
    write_responses: bool = False
    """Whether the last response of every evaluation conversation is also written, and compared with the right one by
    exact match and ROUGE."""
    num_beams: int = Field(default=1, gt=0)
    """Texts that the search follows when responses are written; 1 always takes the likeliest token."""

    form = "instructions"
    carriers = ("decoder", "encoder_decoder")
    head = "causal_lm"
    metrics = ("likelihood", "perplexity", "loss")

    @classmethod
    def head_of(cls, network: NetworkConfig) -> Head:
        """An encoder-decoder stays one."""
        return cls.head if network.network == "decoder" else "seq2seq_lm"

    def reading(self, network: NetworkConfig, tokenizer: TextTokenizer) -> Reading:
        """A decoder goes on after the last turn; an encoder-decoder reads all turns. Of long conversations, the turns
        just before the response are read."""
        from models.generation.config import GenerationConfig
        from pipeline.tune.text_reading import Reading
        from pipeline.tune.tokenizer import SequenceFormat, generation_format

        is_decoder = network.network == "decoder"
        layout = None if is_decoder else generation_format(network, tokenizer, None)
        search = GenerationConfig(
            num_beams=self.num_beams,
            max_new_tokens=self.max_response_length,
            decoder_start_token_id=layout.start if layout else None,
            eos_token_id=tokenizer.special["eos"],
            pad_token_id=tokenizer.pad_id,
        )
        around = layout.source if layout else SequenceFormat((tokenizer.special["bos"],), (), ())
        return Reading(around, search, "left", self.template.special_tokens)

    def chat_template(self, network: NetworkConfig) -> str | None:
        """With the special tokens around a conversation, because `apply_chat_template` adds none."""
        from pipeline.tune.tokenizer import starts_with_padding

        ends = network.network == "encoder_decoder"
        return self.template.jinja(begins=not (ends and starts_with_padding(network)), ends=ends)

    def measure(
        self, conversations: Sequence[Conversation], losses: float, tokens: int, written: Sequence[str] | None
    ) -> dict[str, float]:
        """The metrics of all evaluation conversations together.

        `likelihood` is the geometric mean of the probabilities of all tokens of the responses, which is
        exp(-loss) = 1 / perplexity; `loss` is in nats per token.

        Args:
            losses: sum over tokens, in nats.
            tokens: tokens of the responses.
            written: texts of the last responses; None where none were written.
        """
        loss = losses / tokens
        found = {
            "likelihood": math.exp(-loss),
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "loss": loss,
        }
        if written is not None:
            from pipeline.tune.metrics.rouge import rouge

            right = [conversation.response for conversation in conversations]
            found["exact_match"] = sum(map(str.__eq__, right, written)) / len(right)
            found |= {name: share for name, share in rouge(right, written).items() if name != "rouge_lsum"}
        return found

    def check_lengths(
        self, name: str, max_length: int, network: NetworkConfig, tokenizer: TextTokenizer
    ) -> None:
        """Check the lengths of conversations and of written responses."""
        is_decoder = network.network == "decoder"
        further = self.max_response_length if is_decoder and self.write_responses else 0
        check_positions(name, "training.max_length", max_length, network, further=further)
        if not is_decoder:
            # The decoder reads its start token before the response.
            key = f"tasks.{name}.max_response_length"
            check_positions(name, key, self.max_response_length, network, further=1)
