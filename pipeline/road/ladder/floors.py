"""Scores without a network on the same examples: the most frequent label, and words alone.

Of texts with labels, words alone are a logistic regression on counts of words and pairs of neighbours (scikit-learn's
CountVectorizer and LogisticRegression with their defaults, 1,000 iterations); of words with tags, each word's most
frequent tag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cluster.artefacts.errors import ConfigError
from pipeline.tune.batches import sample_examples
from pipeline.tune.config import FinetuneConfig

MAJORITY = "most frequent label"
WORDS = "words alone"


def floors_of(config: FinetuneConfig, task: str) -> dict[str, float]:
    """The main metric of predictions without a network by name, trained on the examples that fine-tuning reads.

    Raises:
        ConfigError: a ladder has no floor for tasks of this form.
    """
    settings: Any = config.tasks[task]
    if settings.form not in _PREDICT:
        raise ConfigError(
            f"The task {task} is of the form {settings.form}; ladders compare {' and '.join(_PREDICT)}.",
            next_step=f"leave {task} out of the comparisons",
        )
    data = settings.load()
    used = sample_examples(len(data.train), config.training_of(task).max_train_examples)
    train = [data.train[number] for number in used]
    predictions = _PREDICT[settings.form](train, data.evaluation, len(data.labels))
    metric = settings.metrics[0]
    return {name: settings.measure(data.evaluation, found)[metric] for name, found in predictions.items()}


def _of_texts(train: Sequence[Any], evaluation: Sequence[Any], num_labels: int) -> dict[str, np.ndarray]:
    """Scores of labels of each predictor, [examples, labels]."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    labels = [int(each.label) for each in train]
    counts = CountVectorizer(ngram_range=(1, 2))
    columns = counts.fit_transform(["\n".join(each.texts) for each in train])
    model = LogisticRegression(max_iter=1000).fit(columns, labels)
    guessed = model.predict(counts.transform(["\n".join(each.texts) for each in evaluation]))
    most = np.full(len(evaluation), np.bincount(labels).argmax())
    return {MAJORITY: np.eye(num_labels)[most], WORDS: np.eye(num_labels)[guessed]}


def _of_tags(train: Sequence[Any], evaluation: Sequence[Any], num_labels: int) -> dict[str, list[list[str]]]:
    """Tags of every word from each predictor."""
    by_word: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word.lower(), Counter())[tag] += 1
    # Of equally frequent tags, the first in the alphabet.
    most = _most(sum(by_word.values(), Counter()))
    best = {word: _most(tags) for word, tags in by_word.items()}
    return {
        MAJORITY: [[most] * len(each.words) for each in evaluation],
        WORDS: [[best.get(word.lower(), most) for word in each.words] for each in evaluation],
    }


def _most(tags: Counter[str]) -> str:
    return min(tags, key=lambda tag: (-tags[tag], tag))


_PREDICT: Mapping[str, Callable[[Sequence[Any], Sequence[Any], int], Mapping[str, Any]]] = {
    "classification": _of_texts,
    "tags": _of_tags,
}
"""By form of task."""
