"""The template of a conversation: markers around its turns, rendered for training and as a `chat_template`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import model_validator

from pipeline.config.loading import Config

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
    """Markers around the turns of a conversation; the token that ends a text stands after every response, so that
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
        """The text after which the response to some turns is written."""
        return self.render(turns, eos, first).text + self.before_assistant

    def jinja(self, *, begins: bool, ends: bool = False) -> str:
        """The same as a `chat_template` of `transformers`.

        Args:
            begins: whether a conversation begins with the token that begins a text.
            ends: whether the token that ends a text stands after what a response is written to.
        """
        asked = _quoted(self.before_assistant) + (" + eos_token" if ends else "")
        branches = []
        for number, role in enumerate(ROLES):
            end = " + eos_token" if role == "assistant" else ""
            pieces = (
                f"{_quoted(self.before(role))} + message['content'] | trim{end} + {_quoted(self.after(role))}"
            )
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


def _quoted(text: str) -> str:
    """A text as a literal of Jinja, which reads the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)
