"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) of translations, as `sacrebleu` computes them (Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence

TRANSLATION_METRICS = ("bleu", "chrf")


def translation_metrics(
    references: Sequence[str], predictions: Sequence[str], tokenize: str = "13a"
) -> tuple[dict[str, float], dict[str, str]]:
    """`bleu` and `chrf` of all texts together, in [0, 1], and the signature of each, which must be reported beside it.

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
