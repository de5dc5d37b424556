"""mBART to and from Hugging Face (Liu et al. 2020): BART with pre-norm, a last norm on both stacks, and no token that
every decoder starts with. See `bart` for the rest.

`transformers` classifies with mBART by `</s>`, which comes before the tag of the language; our networks take the last
token, so that head is not translated.
"""

from __future__ import annotations

from models.hf.bart import Variant, family_of

MBART = Variant(
    name="mBART",
    norm="pre",
    model_type="mbart",
    architectures={
        "MBartForConditionalGeneration": "seq2seq_lm",
        "MBartModel": "seq2seq_lm",
        "MBartForQuestionAnswering": "question_answering",
    },
    starts_with_eos=False,
)
FAMILY = family_of(MBART)
