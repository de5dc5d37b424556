"""Conversations as token ids, with the tokens that are learned, and rows of several of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cluster.artefacts.errors import ConfigError, MismatchError
from data_prep.ragged import Ragged
from pipeline.samples.formats.packing import best_fit_decreasing
from pipeline.tasks.instructions import ChatTemplate, Conversation, Rendered
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.encoding import EncodedRows


@dataclass(frozen=True, slots=True)
class EncodedConversation:
    """Token ids of a conversation."""

    ids: np.ndarray
    """[tokens] int64."""
    responses: tuple[tuple[int, int], ...]
    """Per response its tokens, from and up to (exclusive), with the end-of-text token."""

    @property
    def learned(self) -> np.ndarray:
        """[tokens] bool: the tokens of responses."""
        found = np.zeros(len(self.ids), dtype=bool)
        for first, last in self.responses:
            found[first:last] = True
        return found


class ConversationEncoder:
    """Encodes conversations as `transformers` does with an export's `chat_template`: rendered whole, then encoded."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate, *, begins: bool) -> None:
        """
        Args:
            begins: whether a conversation begins with the token that begins a text.

        Raises:
            MismatchError: a special token of the template is not one token of the vocabulary.
        """
        self._template = template
        self._eos = tokenizer.token(tokenizer.special["eos"])
        self._first = tokenizer.token(tokenizer.special["bos"]) if begins else ""
        absent = [token for token in template.special_tokens if tokenizer.id_of(token) is None]
        if absent:
            raise MismatchError(
                f"template.special_tokens names {', '.join(absent)}, which the tokenizer {tokenizer.path} lacks.",
                next_step="name tokens of its vocabulary, or write the markers as plain text without special_tokens",
            )
        self._tokenizer = tokenizer.with_special_tokens(template.special_tokens)
        special = (t for t in self._tokenizer.get_added_tokens_decoder().values() if t.special)
        self._special = re.compile("|".join(re.escape(token.content) for token in special))

    def encode(self, conversations: Sequence[Conversation]) -> list[EncodedConversation]:
        """Encode conversations as whole texts.

        Raises:
            ConfigError: a turn holds a special token.
            MismatchError: the tokenizer joins the marker before a response with the response.
        """
        for conversation in conversations:
            self._check_contents(conversation)
        rendered = [self._template.render(each.turns, self._eos, self._first) for each in conversations]
        found = self._tokenizer.encode_batch([each.text for each in rendered], add_special_tokens=False)
        return [
            EncodedConversation(np.array(one.ids, dtype=np.int64), self._responses(each, one.offsets))
            for each, one in zip(rendered, found, strict=True)
        ]

    def encode_pairs(self, conversations: Sequence[Conversation]) -> tuple[Ragged, Ragged]:
        """Per response, the ids of everything before it and its own ids, int64, without special tokens around them."""
        texts: tuple[list[str], list[str]] = ([], [])
        for conversation in conversations:
            self._check_contents(conversation)
            for number, turn in enumerate(conversation.turns):
                if turn.role == "assistant":
                    before = conversation.turns[:number]
                    texts[0].append(self._template.prompt(before, self._eos, self._first))
                    texts[1].append(turn.content)
        before, responses = (
            [
                np.array(one.ids, dtype=np.int64)
                for one in self._tokenizer.encode_batch(side, add_special_tokens=False)
            ]
            for side in texts
        )
        return Ragged.of(before), Ragged.of(responses)

    def _check_contents(self, conversation: Conversation) -> None:
        for number, turn in enumerate(conversation.turns, 1):
            if found := self._special.search(turn.content):
                raise ConfigError(
                    f"{conversation.place}: turn {number} ({turn.role}) holds {found[0]!r}, which the tokenizer reads"
                    " as a special token.",
                    next_step="write it in another way there, or leave the conversation out",
                )

    def _responses(
        self, rendered: Rendered, offsets: Sequence[tuple[int, int]]
    ) -> tuple[tuple[int, int], ...]:
        spans = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        found = []
        for start, stop in rendered.responses:
            # The last token of a response is its end, whose characters no other token shares.
            last = int(np.searchsorted(spans[:, 1], stop, side="left")) + 1
            first = int(np.searchsorted(spans[:, 1], start, side="right"))
            if first < len(spans) and spans[first, 0] < start:
                joined = rendered.text[slice(*spans[first])]
                raise MismatchError(
                    f"The tokenizer joins the marker before a response with the response: {joined!r} is one token.",
                    next_step="let template.before_assistant end with a line end or with one of special_tokens",
                )
            found.append((first, last))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class PackedConversations(EncodedRows):
    """Rows of one conversation or several, which do not see each other."""

    learned: Ragged
    """Per row and token whether it is learned, bool; the first of a conversation never is."""
    pieces: Ragged
    """Per row the tokens of each of its conversations, int64."""
    prompts: Ragged | None = None
    """Per row the token ids before the last response, int64, where responses are written."""

    @property
    def predictions(self) -> np.ndarray:
        """int64 [rows]: learned tokens of each."""
        return np.diff(np.concatenate([[0], np.cumsum(self.learned.values)])[self.learned.offsets])

    @classmethod
    def of(
        cls, conversations: Sequence[EncodedConversation], length: int, *, packed: bool
    ) -> PackedConversations:
        """Rows of conversations.

        Args:
            length: tokens of a row at most; longer conversations are cut at their end.
            packed: put conversations together by best-fit decreasing (Ding et al. 2024, section 3), or one in a row.
        """
        ids = Ragged.of([each.ids[:length] for each in conversations])
        learned = Ragged.of([each.learned[:length] for each in conversations])
        # Per row the indices of its conversations.
        rows = Ragged(np.arange(len(ids)), np.arange(len(ids) + 1))
        if packed:
            offsets, ranks = best_fit_decreasing(
                np.bincount(ids.lengths, minlength=length + 1).astype(np.int64)
            )
            widest_first = np.argsort(-ids.lengths, kind="stable")
            rows = Ragged(widest_first[ranks], offsets)

        def by_row(values: Ragged) -> Ragged:
            sizes = np.concatenate([[0], np.cumsum(values.lengths[rows.values])])
            return Ragged(values.take(rows.values).values, sizes[rows.offsets])

        return cls(by_row(ids), by_row(learned), Ragged(ids.lengths[rows.values], rows.offsets))

    def boundaries(self, rows: np.ndarray, width: int) -> np.ndarray:
        """[pieces + 1] int32: `cu_seqlens` of rows that are padded to `width` on the right; the padding of a row is a
        piece by itself."""
        chosen = self.pieces.take(rows)
        starts = [
            number * width + np.concatenate([[0], np.cumsum(chosen[number])]) for number in range(len(rows))
        ]
        return np.unique(np.concatenate([*starts, [len(rows) * width]])).astype(np.int32)
