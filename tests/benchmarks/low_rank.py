"""Updates of a classifier by LoRA, against the library peft on the same network of transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import peft
import torch
import torch.nn.functional as F
import transformers

from models.classifiers import SequenceClassifier
from models.config import TransformerConfig
from models.hf.directory import save_hf_directory
from models.initialization import init_weights
from models.peft.apply import apply_peft, trained_parameters
from models.peft.hf import save_peft_directory, to_peft
from models.peft.settings import LoraSettings
from tests.benchmarks.compare import Comparison, compare, peer_name

CONFIG = TransformerConfig(
    vocab_size=8192,
    num_layers=4,
    hidden_size=256,
    num_heads=4,
    intermediate_size=1024,
    max_positions=128,
    dropout=0.0,
    attention_dropout=0.0,
)
ROWS, LENGTH, RANK = 16, 128, 8


def run() -> list[Comparison]:
    """Forward pass, backward pass and AdamW; full rows, no dropout, fp32, two threads."""
    torch.set_num_threads(2)
    ours = SequenceClassifier(CONFIG, 2)
    init_weights(ours, 1)
    with tempfile.TemporaryDirectory() as directory:
        theirs = _on_the_same_weights(Path(directory), ours)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, CONFIG.require_vocab_size(), (ROWS, LENGTH), generator=generator)
    labels = torch.randint(2, (ROWS,), generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(input_ids=ids).logits, atol=1e-4, rtol=0)
    update_ours = _updates(list(trained_parameters(ours).values()))
    update_theirs = _updates([one for one in theirs.parameters() if one.requires_grad])
    what = f"LoRA of rank {RANK}, 4 layers x 256, {ROWS} x {LENGTH}"
    return [
        compare(
            what,
            peer_name("peft", "LoRA"),
            "tokens",
            ids.numel(),
            lambda: update_ours(F.cross_entropy(ours(ids), labels)),
            lambda: update_theirs(theirs(input_ids=ids, labels=labels).loss),
            7,
        )
    ]


def _on_the_same_weights(directory: Path, ours: SequenceClassifier) -> Any:
    """The network of `peft` with our weights; LoRA is added to ours, too."""
    save_hf_directory(directory / "base", ours.state_dict(), CONFIG)
    apply_peft(ours, LoraSettings(rank=RANK), 1)
    save_peft_directory(directory / "lora", to_peft(ours, "sequence_classification", "RoBERTa"))
    base = transformers.AutoModelForSequenceClassification.from_pretrained(directory / "base")
    return peft.PeftModel.from_pretrained(base, directory / "lora", is_trainable=True)


def _updates(parameters: list[torch.nn.Parameter]) -> Any:
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def update(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return update
