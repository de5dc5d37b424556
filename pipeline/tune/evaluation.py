"""The outputs of a network for all evaluation rows, computed by all processes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from pipeline.tune.forms.base import EncodedPart, PaddedBatch, PreparedTask


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    task: PreparedTask,
    loader: DataLoader,
    between: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """[rows, ...]: the form's outputs for every evaluation row, in order.

    Called by all processes together; each computes a part, all return the whole.

    Args:
        between: called before every batch; what it raises, it raises in all processes.
    """
    model.eval()
    rows: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    with torch.no_grad():
        for padded, numbers in loader:
            between()
            batch = cast(PaddedBatch, padded).to(accelerator.device)
            # Accelerate pads the last round with repeated rows; gathering drops them again.
            with accelerator.autocast():
                mine = (numbers.to(accelerator.device), task.outputs(model, batch))
            found = accelerator.gather_for_metrics(mine)
            rows.append(found[0].cpu())
            outputs.append(found[1].cpu())
    order = torch.cat(rows)
    assert order.sort().values.equal(torch.arange(len(order))), "each row must be gathered exactly once"
    return torch.cat(outputs)[order.argsort()].numpy()


def evaluation_loader(
    accelerator: Accelerator, task: PreparedTask, part: EncodedPart | None = None
) -> DataLoader:
    """Batches of rows of similar length, longest first, with their numbers; of `task.evaluation` unless given."""
    rows_of = task.evaluation if part is None else part
    by_length = np.argsort(-rows_of.lengths, kind="stable")

    def collate(numbers: Sequence[int]) -> tuple[PaddedBatch, torch.Tensor]:
        rows = np.asarray(numbers)
        return task.batch(rows_of, rows), torch.from_numpy(rows)

    loader = DataLoader(by_length.tolist(), batch_size=task.evaluation_batch_size, collate_fn=collate)
    return cast(DataLoader, accelerator.prepare_data_loader(loader, device_placement=False))
