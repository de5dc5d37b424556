"""One's own conversations, for instruction tuning (Ouyang et al. 2022, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pipeline.config.loading import Config
from pipeline.tune.files.rows import Row
from pipeline.tune.forms.instructions.settings import Conversation, InstructionTaskConfig
from pipeline.tune.forms.instructions.template import ROLES, Turn
from pipeline.tune.tasks.rows.base import RowsTaskConfig, name_of, rows_of, text_in, value_of


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


class InstructionsConfig(RowsTaskConfig, InstructionTaskConfig):
    """Instruction tuning on one's own conversations."""

    kind: Literal["instructions"] = "instructions"
    columns: ConversationColumns = ConversationColumns()
    """Names of the columns."""

    def examples(self, path: Path) -> Iterator[Conversation]:
        """The conversations of a file.

        Raises:
            MissingInputError: it is missing.
            ConfigError: it cannot be read, or a row is no conversation that ends with a response.
        """
        columns = self.columns
        for row in rows_of(path):
            # Parquet has a column in all rows, with null where a row has no value.
            is_chat = row.values.get(columns.messages) is not None
            read = _turns_of_messages if is_chat else _turns_of_pair
            turns = tuple(read(row, columns))
            yield Conversation(name_of(row, columns.id), turns, row.place)


def _turns_of_pair(row: Row, columns: ConversationColumns) -> Iterator[Turn]:
    if columns.prompt not in row.values:
        near = ", ".join(f"`{name}`" for name in row.values) or "nothing"
        problem = f"there is neither `{columns.messages}` nor `{columns.prompt}`; there is {near}"
        raise row.error(problem, "set columns.messages or columns.prompt to one of them")
    names = {"user": columns.prompt, "assistant": columns.response}
    # A row without a system turn may leave its column empty.
    if columns.system is not None and row.values.get(columns.system):
        names = {"system": columns.system, **names}
    settings = {"system": "system", "user": "prompt", "assistant": "response"}
    for role in ROLES:
        if role in names:
            content = text_in(row, settings[role], names[role]).strip()
            if not content:
                raise row.error(f"the column `{names[role]}` is empty", "fill it, or leave the row out")
            yield Turn(role, content)


def _turns_of_messages(row: Row, columns: ConversationColumns) -> Iterator[Turn]:
    messages = value_of(row, "messages", columns.messages)
    if not isinstance(messages, list) or not messages:
        remedy = 'write it as [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
        raise row.error(f"the column `{columns.messages}` is no list of turns", remedy)
    turns = [_turn(row, number, message) for number, message in enumerate(messages, 1)]
    if problem := _disorder(turns):
        remedy = "begin with system or user, let user and assistant take turns, and end with assistant"
        raise row.error(problem, remedy)
    yield from turns


def _turn(row: Row, number: int, message: Any) -> Turn:
    if not isinstance(message, dict):
        raise row.error(f"turn {number} is no object", "give every turn a `role` and a `content`")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise row.error(f"turn {number} has the role {role!r}", f"use one of the roles {', '.join(ROLES)}")
    if not isinstance(content, str) or not content.strip():
        problem = f"turn {number} ({role}) has no content"
        raise row.error(problem, "give it a text, or leave the conversation out")
    return Turn(role, content.strip())


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
