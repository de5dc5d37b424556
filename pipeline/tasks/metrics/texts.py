"""Scores of written texts: ROUGE of summaries (Lin 2004), as the package `rouge-score` computes it, and BLEU and chrF
of translations, as `sacrebleu` does.

Published figures of XSum and CNN/DailyMail come from ROUGE-1.5.5, a Perl script with another stemmer and other words
left out; on the same summaries `rouge-score` gives up to 0.32 points (of 100) less. Compare figures of one tool only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

ROUGE_NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rouge_l": "rougeL", "rouge_lsum": "rougeLsum"}
"""Our names of the metrics to the names in `rouge-score`."""


def rouge(references: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Mean F-measure over texts, in [0, 1], by `ROUGE_NAMES`.

    Words are stemmed (Porter), as for the published scores. `rouge_l` takes each text as one sequence; `rouge_lsum`
    looks for each sentence of the reference in all sentences of the prediction, as the published ROUGE-L of
    CNN/DailyMail does: sentences are lines, or, in a text of one line, found by the sentence splitter.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    by_sentence = RougeScorer(["rougeLsum"], use_stemmer=True)
    lines = zip(sentence_lines(references), sentence_lines(predictions), strict=True)
    found = [scorer.score(right, written) for right, written in zip(references, predictions, strict=True)]
    found_lines = [by_sentence.score(right, written) for right, written in lines]
    scores = [one | by_line for one, by_line in zip(found, found_lines, strict=True)]
    return {
        ours: float(np.mean([each[theirs].fmeasure for each in scores]))
        for ours, theirs in ROUGE_NAMES.items()
    }


def sentence_lines(texts: Sequence[str]) -> list[str]:
    """The texts with a sentence in each line; texts of several lines as they are."""
    whole = [text for text in texts if "\n" not in text.strip()]
    cut = iter(sentences(whole))
    return [text if "\n" in text.strip() else "\n".join(next(cut)) for text in texts]


def sentences(texts: Sequence[str]) -> list[list[str]]:
    """The sentences of each text, without white space around them; line ends also end sentences."""
    import pyarrow as pa

    from data_prep.sentences import cut_sentences

    cuts = cut_sentences(pa.array(texts, pa.string()), pa.array(["en"] * len(texts)), "blingfire")
    found = []
    for number, text in enumerate(texts):
        content = text.encode()
        bounds = [0, *map(int, cuts[number]), len(content)]
        pieces = (content[first:last].decode().strip() for first, last in itertools.pairwise(bounds))
        found.append([piece for piece in pieces if piece])
    return found


def translation_metrics(
    references: Sequence[str], predictions: Sequence[str], tokenize: str = "13a"
) -> tuple[dict[str, float], dict[str, str]]:
    """`bleu` and `chrf` of all texts together, in [0, 1], and the signature of each, which must be reported beside it.

    BLEU (Papineni et al. 2002) and chrF (Popović 2015) are those of `sacrebleu` (Post 2018).

    Args:
        references: one right translation per text.
        tokenize: how `sacrebleu` cuts texts into words: 13a, intl, char, zh and others.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scorers = {"bleu": BLEU(tokenize=tokenize), "chrf": CHRF()}
    scores = {
        name: scorer.corpus_score(list(predictions), [list(references)]).score / 100
        for name, scorer in scorers.items()
    }
    return scores, {name: str(scorer.get_signature()) for name, scorer in scorers.items()}
