"""Tasks made from held-out documents."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError, MismatchError
from data_prep import token_store
from data_prep.document import Document
from pipeline.road.demo.tasks.docstring_code import CODE, DocstringCodeConfig, tag_words
from pipeline.road.demo.tasks.docstring_package import DocstringPackageConfig
from pipeline.road.demo.tasks.docstring_word_order import DocstringWordOrderConfig, exchange_halves
from pipeline.road.demo.tasks.held_out_sentences import read_sentences, split_sentences
from pipeline.samples.noise.noise import Noise

PACKAGES = ("numpy", "ray", "sklearn", "torch")
NOUNS = ("matrix", "actor", "model", "tensor", "array", "worker", "score", "layer")


def sentence(number: int, package: str) -> str:
    """A sentence of eleven words that no other number has."""
    first, second = NOUNS[number % 8], NOUNS[number // 8 % 8]
    digits = " ".join("abcdefghij"[int(digit)] * 3 for digit in f"{number:03d}")
    return f"Return the `{first}` of {package} whose {second} is {digits} here."


class Store:
    """What the tasks use of a token store: 300 documents of three sentences, the even ones held out."""

    fingerprint = "f" * 32

    def __init__(self, packages: tuple[str | None, ...] = PACKAGES) -> None:
        self.all_documents = [
            Document(
                doc_id=f"docs:{n}",
                source="docs",
                uri="",
                title="",
                lang="en",
                text="\n".join(
                    sentence(3 * n + k, packages[n // 2 % len(packages)] or "this") for k in range(3)
                ),
                meta={"package": packages[n // 2 % len(packages)]},
            )
            for n in range(300)
        ]

    def documents(self, numbers: np.ndarray) -> list[Document]:
        return [self.all_documents[number] for number in numbers]

    def held_out(self, fraction: float) -> np.ndarray:
        return np.arange(300) % 2 == 0


@pytest.fixture
def store(monkeypatch) -> Store:
    store = Store()
    monkeypatch.setattr(token_store.TokenStore, "open", lambda path: store)
    return store


def package_config(**changes) -> DocstringPackageConfig:
    plain = {"store": Path("tokens"), "packages": 4, "train_examples": 120, "evaluation_examples": 60}
    return DocstringPackageConfig.model_validate(plain | changes)


def code_config(**changes) -> DocstringCodeConfig:
    plain = {"store": Path("tokens"), "train_examples": 120, "evaluation_examples": 60}
    return DocstringCodeConfig.model_validate(plain | changes)


def order_config() -> DocstringWordOrderConfig:
    plain = {"store": Path("tokens"), "train_examples": 120, "evaluation_examples": 60}
    return DocstringWordOrderConfig.model_validate(plain)


CONFIGS = [package_config(), code_config(), order_config()]


def documents_of(examples) -> set[str]:
    return {example.id.partition("#")[0] for example in examples}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_no_document_is_on_both_sides_and_all_are_held_out(store, config):
    data = config.load()
    train, evaluation = documents_of(data.train), documents_of(data.evaluation)
    assert not train & evaluation
    assert all(int(doc_id.removeprefix("docs:")) % 2 == 0 for doc_id in train | evaluation)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_examples_are_the_same_every_time(store, config):
    data = config.load()
    assert data == config.load()
    assert (len(data.train), len(data.evaluation)) == (120, 60)


def test_packages_are_equally_frequent(store):
    data = package_config().load()
    counts = Counter(example.label for example in data.evaluation)
    assert set(counts.values()) == {60 // len(data.labels)}


def test_package_names_are_masked_but_not_inside_other_words(store):
    data = package_config().load()
    for example in (*data.train, *data.evaluation):
        assert " of PACKAGE whose" in example.text_a
        assert not any(name in example.text_a for name in ("numpy", "sklearn", "torch"))
    assert any("array" in example.text_a for example in data.train)
    assert data.labels == PACKAGES


def test_aliases_are_masked_in_any_case(store):
    store.all_documents = [
        dataclasses.replace(d, text=d.text.replace(" torch ", " PyTorch or `np.sum` "))
        for d in store.all_documents
    ]
    texts = [e.text_a for e in package_config().load().train]
    assert any("PACKAGE or `PACKAGE.sum`" in text for text in texts)


def test_text_found_on_both_sides_stays_in_the_evaluation_only(store):
    shared = "Arrays are converted before they are used by the estimator."
    store.all_documents = [dataclasses.replace(d, text=f"{d.text}\n{shared}") for d in store.all_documents]
    sentences = read_sentences(code_config())
    assert sum(s.text == shared for s in sentences.train) == 0
    assert sum(s.text == shared for s in sentences.evaluation) == 1


def test_too_little_text_is_an_error_that_says_what_was_found(store):
    with pytest.raises(ConfigError, match=r"held_out 0\.01.* too few.*found \d+"):
        code_config(train_examples=5000).load()
    with pytest.raises(ConfigError, match=r"too few.*sentences of 5 packages are needed, found 4"):
        package_config(packages=5).load()


def test_documents_without_packages_are_an_error(store):
    store.documents = Store(packages=(None,)).documents
    with pytest.raises(ConfigError, match="no `package` in its meta"):
        package_config().load()


def test_every_sentence_occurs_in_order_and_disordered_with_the_same_words_and_ends(store):
    data = order_config().load()
    for disordered, ordered in zip(data.train[::2], data.train[1::2], strict=True):
        assert (data.labels[int(disordered.label)], data.labels[int(ordered.label)]) == (
            "disordered",
            "in_order",
        )
        moved, words = disordered.text_a.split(), ordered.text_a.split()
        assert moved != words
        assert sorted(moved) == sorted(words)
        assert (moved[0], moved[-1]) == (words[0], words[-1])
        assert (words[0].islower(), words[-1].isalpha()) == (True, True)


def test_halves_are_exchanged_in_the_middle_third():
    words = [f"w{number}" for number in range(12)]
    for draw in range(20):
        moved = exchange_halves(words, Noise.of(draw))
        assert moved is not None
        cut = 12 - moved.index("w1")
        assert moved == ["w0", *words[cut:-1], *words[1:cut], "w11"]
        assert 4 <= cut < 8


def test_halves_are_not_cut_behind_punctuation():
    assert exchange_halves(["a", "b,", "c,", "d,", "e", "f"], Noise.of(1)) is None
    assert exchange_halves(["a", "b", "c,", "d", "e", "f"], Noise.of(1)) == ["a", "c,", "d", "e", "b", "f"]


def test_sentence_of_equal_words_has_no_halves_to_exchange():
    assert exchange_halves(["no"] * 6, Noise.of(1)) is None


def test_code_is_tagged_and_its_marks_are_gone(store):
    data = code_config().load()
    assert data.labels == ("O", CODE)
    for sentence in (*data.train, *data.evaluation):
        assert not any("`" in word for word in sentence.words)
        assert [word in NOUNS for word in sentence.words[:3]] == [False, False, True]
        assert [number for number, tag in enumerate(sentence.tags) if tag == CODE] == [2]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Call ``np.sum`` first.", ["np.sum"]),
        ("It is (`axis`), or :func:`~torch.sum`!", ["axis", "~torch.sum"]),
        ("All `Tensor`s of `nn.Module`_ are moved.", ["Tensor", "nn.Module"]),
        ("Nothing is marked here.", None),
        ("Code of `two words` is unclear.", None),
        ("Half of a `pair is unclear.", None),
        ("A ``pair` of unequal marks is unclear.", None),
    ],
)
def test_marks_of_docstrings_are_read(text: str, code: list[str] | None):
    tagged = tag_words(text)
    found = tagged and [word for word, tag in zip(*tagged, strict=True) if tag == CODE]
    assert found == code


def test_punctuation_around_words_does_not_tell_their_tags():
    tagged = tag_words("See (the `axis`), if any.")
    assert tagged
    assert tagged[0] == ["See", "the", "axis", "if", "any"]


def test_metrics_count_words_of_code(store):
    config = code_config()
    sentences = config.load().evaluation[:2]
    right = [sentence.tags for sentence in sentences]
    assert config.measure(sentences, right) == {"f1": 1.0, "accuracy": 1.0}
    prose = ["O"] * len(right[1])
    measured = config.measure(sentences, [right[0], prose])
    assert measured["f1"] == pytest.approx(2 / 3)


def test_sentences_end_at_full_stops_and_paragraphs_but_not_at_line_ends():
    text = "One line\ngoes on. Then 2.5 more! Is it?\n\nAnother paragraph"
    assert list(split_sentences(text)) == [
        "One line goes on.",
        "Then 2.5 more!",
        "Is it?",
        "Another paragraph",
    ]


def test_underlined_headings_belong_to_no_sentence():
    text = "It is fast.\n\nReturns\n-------\nout : array\n    The result.\nNotes\n  =====\nSee there."
    assert list(split_sentences(text)) == ["It is fast.", "out : array The result.", "See there."]


def test_code_and_fragments_are_no_sentences(store):
    junk = ">>> x = np.ones(3); y = x + 1; print(x, y)\n\nstarts in lower case and ends here.\n\nToo short."
    store.all_documents = [dataclasses.replace(d, text=f"{junk}\n\n{d.text}") for d in store.all_documents]
    assert all(s.text.startswith("Return the") for s in read_sentences(code_config()).train)


def test_checkpoint_that_saw_the_documents_is_refused(store, make_config, checkpoint, monkeypatch):
    from pipeline.checkpoint import checkpoint as checkpoints
    from pipeline.tune.workload import make_workload

    state = SimpleNamespace(identity={"data": {"held_out": 0.01}})
    monkeypatch.setattr(checkpoints, "read_trainer_state", lambda directory: state)
    tasks = {"code": {"kind": "docstring_code", "store": "tokens", "held_out": 0.05}}
    with pytest.raises(MismatchError, match=r"trained on all but 0\.01.*\n.*tasks\.code\.held_out=0\.01"):
        make_workload(make_config(tasks=tasks), checkpoint)
