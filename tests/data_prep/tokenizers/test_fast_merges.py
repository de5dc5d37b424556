"""Merges learned by the fast library are those of Hugging Face tokenizers, or are not used."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.tokenizers import fast_merges
from data_prep.tokenizers.byte_level_bpe import reference_merges, train, train_bpe, with_merges
from data_prep.tokenizers.config import ByteLevelBPE
from data_prep.tokenizers.fast_merges import byte_alphabet, learn_merges

pytest.importorskip("gigatoken")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def novel(corpora):
    return min((corpora / "books" / "en").glob("*.txt")).read_text(encoding="utf-8-sig").split("\n\n")


def adversarial_texts(seed: int) -> list[str]:
    generator = random.Random(seed)
    pool = [chr(generator.randrange(0x20, 0x3100)) for _ in range(300)]
    pool += [
        *" \t\n\r\x0b\x85\xa0\u2003\u2028\u3000\x00\x1c\u180e\u200b\ufeff",
        "'s",
        "'LL",
        " ",
        "  ",
        "1",
        "é",
        "\u0301",
        "👩‍👩‍👧",
    ] * 4
    return ["".join(generator.choices(pool, k=200)) for _ in range(200)]


def test_the_same_tokenizer_comes_out_on_real_text(novel):
    merges = learn_merges(novel, 3000, 2, reference_merges, with_merges)
    assert merges == reference_merges(novel, 3000, 2)
    assert train(novel, ByteLevelBPE(vocab_size=3005)) == train_bpe(novel, 3005, 2)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_merges_are_learned_on_odd_unicode(seed):
    texts = adversarial_texts(seed)
    assert fast_merges._gigatoken(texts, 1000) == reference_merges(texts, 1000, 1)[: 1000 - 256]


def test_training_that_min_frequency_ends_is_left_to_the_reference(novel):
    assert learn_merges(novel, 3000, 1000, reference_merges, with_merges) is None


def test_a_difference_on_a_sample_leaves_training_to_the_reference(novel):
    def other(texts, vocab_size, min_frequency):
        return reference_merges(texts, vocab_size, min_frequency)[::-1]

    assert learn_merges(novel, 3000, 2, other, with_merges) is None


def test_without_the_fast_library_the_reference_trains_and_nothing_is_said(novel, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert train(novel[:200], ByteLevelBPE(vocab_size=700)) == train_bpe(novel[:200], 700, 2)
    assert capfd.readouterr() == ("", "")


def test_training_has_no_more_threads_than_its_task_has_cpus(novel, tmp_path):
    """Threads are counted in a process that does nothing else, because a pool is started once."""
    (tmp_path / "text").write_text("\n\n".join(novel), encoding="utf-8")
    script = f"""
import os, pathlib, threading
os.environ["RAYON_NUM_THREADS"] = "1"
from data_prep.tokenizers import fast_merges
def threads():
    return len(os.listdir("/proc/self/task"))
texts = pathlib.Path({str(tmp_path / "text")!r}).read_text(encoding="utf-8").split("\\n\\n")
before, most, done = threads(), 0, threading.Event()
def watch():
    global most
    while not done.wait(0.001):
        most = max(most, threads())
watcher = threading.Thread(target=watch)
watcher.start()
fast_merges._gigatoken(texts * 4, 3000)
done.set()
watcher.join()
print(most - before - 1)
"""
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(found.stdout) <= 1


def test_the_alphabet_is_that_of_gpt2():
    from tokenizers import pre_tokenizers

    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for character in ("\x00", " ", "A", "\x7f", "é", "日"):
        ((written, _),) = splitter.pre_tokenize_str(character)
        assert written == "".join(byte_alphabet()[byte] for byte in character.encode())


def test_training_prints_nothing(novel, capfd):
    fast_merges._gigatoken(novel, 1000)
    assert capfd.readouterr() == ("", "")
