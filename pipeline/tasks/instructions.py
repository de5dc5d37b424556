"""Instruction tuning on one's own conversations (Ouyang et al. 2022, section 3.2): turns, the template of markers
around them, settings, and rows.

A template is rendered for training, and exported as a `chat_template`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import Field, model_validator

from models.config import NetworkConfig
from pipeline.config.loading import Config
from pipeline.tasks.files.rows import Row
from pipeline.tasks.rows import RowsTaskConfig
from pipeline.tasks.task import check_positions

if TYPE_CHECKING:
    from models.hf.heads import Head
    from pipeline.tasks.tokenizer import Reading, TextTokenizer

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation."""

    role: Role
    content: str
    """Without white space around it."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text."""

    text: str
    responses: tuple[tuple[int, int], ...]
    """Per turn of the assistant its characters, from and up to (exclusive), with the end-of-text token."""


class ChatTemplate(Config):
    """Markers around the turns of a conversation; the token that ends a text follows every response, so that
    writing stops there."""

    before_system: str = "System:\n"
    """Text before the content of a system turn."""
    after_system: str = "\n"
    """Text after it."""
    before_user: str = "User:\n"
    """Text before the content of a user's turn."""
    after_user: str = "\n"
    """Text after it."""
    before_assistant: str = "Assistant:\n"
    """Text before a response, which the prompt of a response ends with."""
    after_assistant: str = ""
    """Text between the end of a response and the next turn."""
    special_tokens: tuple[str, ...] = ()
    """Tokens of the vocabulary that the markers are written with, such as `<|im_start|>`."""

    @model_validator(mode="after")
    def _sound(self) -> ChatTemplate:
        problems = []
        if self.before_assistant[-1:].isspace() and not self.before_assistant.endswith("\n"):
            # Most tokenizers join a space with the word after it, which a prompt does not have yet.
            problems.append(f"before_assistant {self.before_assistant!r} must not end with a space")
        markers = "".join(self.before(role) + self.after(role) for role in ROLES)
        unused = [token for token in self.special_tokens if not token or token not in markers]
        problems += [f"special_tokens names {token!r}, which no marker holds" for token in unused]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def before(self, role: Role) -> str:
        """The marker before a turn."""
        return getattr(self, f"before_{role}")

    def after(self, role: Role) -> str:
        """The marker after a turn."""
        return getattr(self, f"after_{role}")

    def render(self, turns: Sequence[Turn], eos: str, first: str = "") -> Rendered:
        """A conversation as text.

        Args:
            eos: the token that ends a text, as text.
            first: the token that begins one; empty where none is read.
        """
        text, responses = first, []
        for turn in turns:
            text += self.before(turn.role)
            start = len(text)
            text += turn.content
            if turn.role == "assistant":
                text += eos
                responses.append((start, len(text)))
            text += self.after(turn.role)
        return Rendered(text, tuple(responses))

    def prompt(self, turns: Sequence[Turn], eos: str, first: str = "") -> str:
        """The prompt for the response to some turns."""
        return self.render(turns, eos, first).text + self.before_assistant

    def jinja(self, *, begins: bool, ends: bool = False) -> str:
        """The same as a `chat_template` of `transformers`.

        Args:
            begins: whether a conversation begins with the token that begins a text.
            ends: whether the token that ends a text follows the prompt.
        """
        # Jinja reads the escapes of JSON.
        before, after = (
            [json.dumps(marker(role), ensure_ascii=False) for role in ROLES]
            for marker in (self.before, self.after)
        )
        asked = before[-1] + (" + eos_token" if ends else "")
        branches = []
        for number, role in enumerate(ROLES):
            end = " + eos_token" if role == "assistant" else ""
            pieces = f"{before[number]} + message['content'] | trim{end} + {after[number]}"
            word = "elif" if number else "if"
            branches.append(f"{{%- {word} message['role'] == '{role}' -%}}{{{{- {pieces} -}}}}")
        return (
            f"{'{{- bos_token -}}' if begins else ''}"
            "{%- for message in messages -%}"
            f"{''.join(branches)}"
            "{%- else -%}{{- raise_exception('unknown role ' + message['role']) -}}{%- endif -%}"
            "{%- endfor -%}"
            f"{{%- if add_generation_prompt -%}}{{{{- {asked} -}}}}{{%- endif -%}}"
        )


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


class ConversationColumns(Config):
    """Names of the columns. A row holds either `messages`, or a prompt and a response."""

    prompt: str = "prompt"
    """The instruction."""
    response: str = "response"
    """The text to write for it."""
    system: str | None = None
    """A system turn before the prompt; null where there is none."""
    messages: str = "messages"
    """A list of turns, each an object with `role` (system, user or assistant) and `content`."""
    id: str | None = None
    """Names of conversations in the predictions; null takes file and line."""


class InstructionsConfig(RowsTaskConfig):
    """Instruction tuning on one's own conversations."""

    kind: Literal["instructions"] = "instructions"
    columns: ConversationColumns = ConversationColumns()
    """Names of the columns."""
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

    def example(self, row: Row, labels: tuple[str, ...]) -> Conversation:
        """The conversation, which ends with a response."""
        columns = self.columns
        # Parquet has a column in all rows, with null where a row has no value.
        is_chat = row.values.get(columns.messages) is not None
        turns = tuple((_turns_of_messages if is_chat else _turns_of_pair)(row, columns))
        return Conversation(row.id(columns.id), turns, row.place)

    @classmethod
    def head_of(cls, network: NetworkConfig) -> Head:
        """An encoder-decoder stays one."""
        return cls.head if network.network == "decoder" else "seq2seq_lm"

    def reading(self, network: NetworkConfig, tokenizer: TextTokenizer) -> Reading:
        """A decoder continues the last turn; an encoder-decoder reads all turns. A long conversation is cut to the
        turns just before the response."""
        from models.generation.config import GenerationConfig
        from pipeline.tasks.tokenizer import Reading, SequenceFormat, generation_format

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
        from pipeline.tasks.tokenizer import starts_with_padding

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
            from pipeline.tasks.metrics.texts import rouge

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


def _turns_of_pair(row: Row, columns: ConversationColumns) -> Iterator[Turn]:
    if columns.prompt not in row.values:
        near = ", ".join(f"`{name}`" for name in row.values) or "nothing"
        problem = f"there is neither `{columns.messages}` nor `{columns.prompt}`; there is {near}"
        raise row.error(problem, "set columns.messages or columns.prompt to one of them")
    named: list[tuple[Role, str, str]] = [
        ("user", "prompt", columns.prompt),
        ("assistant", "response", columns.response),
    ]
    # A row without a system turn may leave its column empty.
    if columns.system is not None and row.values.get(columns.system):
        named.insert(0, ("system", "system", columns.system))
    for role, setting, column in named:
        content = row.text(setting, column).strip()
        if not content:
            raise row.error(f"the column `{column}` is empty", "fill it, or leave the row out")
        yield Turn(role, content)


def _turns_of_messages(row: Row, columns: ConversationColumns) -> list[Turn]:
    messages = row.value("messages", columns.messages)
    if not isinstance(messages, list) or not messages:
        remedy = 'write it as [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
        raise row.error(f"the column `{columns.messages}` is no list of turns", remedy)
    turns = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise row.error(f"turn {number} is no object", "give every turn a `role` and a `content`")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            remedy = f"use one of the roles {', '.join(ROLES)}"
            raise row.error(f"turn {number} has the role {role!r}", remedy)
        if not isinstance(content, str) or not content.strip():
            problem = f"turn {number} ({role}) has no content"
            raise row.error(problem, "give it a text, or leave the conversation out")
        turns.append(Turn(role, content.strip()))
    if problem := _disorder(turns):
        remedy = "begin with system or user, let user and assistant take turns, and end with assistant"
        raise row.error(problem, remedy)
    return turns


def _disorder(turns: Sequence[Turn]) -> str | None:
    """The problem with the order of the turns."""
    for number, turn in enumerate(turns, 1):
        before = turns[number - 2].role if number > 1 else None
        if turn.role == before:
            return f"turns {number - 1} and {number} are both of the role {turn.role}"
        if turn.role == "system" and before is not None:
            return f"turn {number} is a system turn, which only the first may be"
        if turn.role == "assistant" and before != "user":
            return f"turn {number} is a response, and no user's turn is before it"
    return None if turns[-1].role == "assistant" else f"the last turn ({turns[-1].role}) has no response"
