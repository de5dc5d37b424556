"""SQuAD's questions as windows with answers, against the recipe of transformers' run_qa.py, one thread.

Each does the whole of the official training file's first questions with BERT's WordPiece and windows of 384 tokens;
ours begin 128 tokens apart, as BERT's, theirs share 128 tokens. Processor seconds.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.compare import Comparison, compare, peer_name

QUESTIONS, LENGTH, STRIDE, ROUNDS = 4000, 384, 128, 5
BATCH = 1000
"""Questions that `datasets` hands to run_qa.py's function at a time."""


def run() -> list[Comparison]:
    """Questions per second, where `CLOZE_DATA` has SQuAD and BERT's vocabulary."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    from models.config import TransformerConfig
    from pipeline.tasks.question_answering import read_questions
    from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
    from pipeline.tune.forms.windows import encode_questions
    from tests.pipeline.tune.test_bulk_encoding import featurised

    corpora = Path(os.environ["CLOZE_DATA"])
    questions = read_questions(corpora / "squad/train-v1.1.44articles.json")[:QUESTIONS]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "tokenizer.json"
        BertWordPieceTokenizer(str(corpora / "tokenizers/bert-base-uncased/vocab.txt")).save(str(path))
        tokenizer = TextTokenizer(path)
        peer = PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="[PAD]")
    sequences = sequence_format(TransformerConfig(num_segments=2), tokenizer)

    def ours() -> object:
        return encode_questions(
            tokenizer, sequences, questions, max_length=LENGTH, max_query_length=64, doc_stride=STRIDE
        )

    def theirs() -> object:
        batches = [questions[first : first + BATCH] for first in range(0, len(questions), BATCH)]
        return [featurised(peer, batch, LENGTH, STRIDE) for batch in batches]

    name = peer_name("transformers", "as in run_qa.py")
    return [compare("SQuAD's windows", name, "questions", QUESTIONS, _cpu(ours), _cpu(theirs), ROUNDS)]


def _cpu(work: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return measure
