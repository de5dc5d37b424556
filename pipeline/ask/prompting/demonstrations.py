"""Demonstrations: labelled examples that stand before a text (Brown et al. 2020, section 2)."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.artefacts.errors import ConfigError
from pipeline.tune.batches import example_order
from pipeline.tune.forms.classification.settings import Example


def draw_demonstrations(examples: Sequence[Example], num_labels: int, shots: int, seed: int) -> list[Example]:
    """Draw examples, as many of each label as of the others (one more of the first labels where `shots` does not
    divide), in random order; a function of the seed and the examples.

    Raises:
        ConfigError: there are fewer examples of a label than are drawn.
    """
    order = example_order(seed, 0, len(examples)).tolist()
    wanted = [shots // num_labels + (label < shots % num_labels) for label in range(num_labels)]
    drawn = []
    for number in order:
        label = int(examples[number].label)
        if wanted[label]:
            wanted[label] -= 1
            drawn.append(examples[number])
    if any(wanted):
        fewest = min(sum(example.label == label for example in examples) for label in range(num_labels))
        raise ConfigError(
            f"{shots} demonstrations need more examples of a label than the {len(examples)} training examples have.",
            next_step=f"shots={fewest * num_labels}",
        )
    return drawn
