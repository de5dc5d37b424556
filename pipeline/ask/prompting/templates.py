"""Templates: a text with places for the texts of an example and for the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.artefacts.errors import ConfigError
from pipeline.tune.tasks.forms import Example

_PLACE = re.compile(r"\[([xyz])\]")


@dataclass(frozen=True, slots=True)
class Template:
    """A text with `[x]` for the text of an example, `[y]` for the second text of a pair, and `[z]` for the answer
    (Schick and Schütze 2021, section 3.1; Petroni et al. 2019)."""

    text: str

    def __post_init__(self) -> None:
        places = _PLACE.findall(self.text)
        if missing := [f"[{place}]" for place in "xz" if place not in places]:
            raise ConfigError(
                f"The template {self.text!r} has no {' and no '.join(missing)}.",
                next_step='write [x] where the text stands and [z] where the answer does: "[x] It was [z]."',
            )
        if repeated := [f"[{place}]" for place in "yz" if places.count(place) > 1]:
            raise ConfigError(
                f"The template {self.text!r} has {' and '.join(repeated)} more than once.",
                next_step="leave it in one place",
            )

    @property
    def has_pair(self) -> bool:
        """Whether there is a place for a second text."""
        return "[y]" in self.text

    @property
    def ends_with_answer(self) -> bool:
        """Whether no text of the example stands after the answer."""
        after = self.text.partition("[z]")[2]
        return not _PLACE.search(after)

    def check_task(self, is_pair: bool) -> None:
        """
        Raises:
            ConfigError: the template has a place too many, or too few, for the texts of a task.
        """
        if self.has_pair and not is_pair:
            raise ConfigError(
                f"The template {self.text!r} has [y], and the task has single texts.",
                next_step="leave out [y]",
            )
        if is_pair and not self.has_pair:
            raise ConfigError(
                f"The template {self.text!r} has no [y], and the task has pairs of texts.",
                next_step='write [y] where the second text stands: "[x] ? [z], [y]"',
            )

    def halves(self, first: str, second: str | None) -> tuple[str, str]:
        """The text before the answer and the text after it."""
        given = {"x": first.strip(), "y": (second or "").strip()}
        before, _, after = self.text.partition("[z]")
        # A text may itself contain `[y]`: places are filled in one pass.
        fill = lambda half: _PLACE.sub(lambda match: given[match[1]], half)  # noqa: E731
        return fill(before), fill(after)

    def answered(self, example: Example, answer: str) -> str:
        """An example with its answer, as a demonstration."""
        before, after = self.halves(example.text_a, example.text_b)
        return f"{before}{answer}{after}"
