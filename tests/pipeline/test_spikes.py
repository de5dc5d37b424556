"""Loss spikes, updates that are skipped, and the data that is left out after them."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import CorruptArtefactError
from pipeline.pretrain.spikes import LossWindow, loss_spike, not_finite
from pipeline.run.directory import RunDirectory
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from tests.pipeline.ranks import make_config

SPIKE = SkippedStep(at_update=7, data_step=7, loss=9.5, score=12.0)


@pytest.mark.parametrize(
    ("losses", "loss", "score"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 6.0, (6.0 - 3.0) / (1.4826 * 1.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.0, (0.0 - 3.0) / (1.4826 * 1.0)),
        # Mostly equal ones are compared by their mean deviation.
        ([1.0] * 7 + [1.8], 1.4, 0.4 / (1.2533 * 0.1)),
        ([1.0] * 8, 1.0, 0.0),
        ([1.0] * 8, 1e9, math.inf),
    ],
)
def test_score_is_the_robust_z_score(losses: list[float], loss: float, score: float):
    assert LossWindow(len(losses), None, losses).score(loss) == pytest.approx(score)
    assert LossWindow(len(losses) + 1, None, losses).score(loss) is None, "before the window is full"


def test_a_healthy_run_has_no_spike_and_a_jump_is_one():
    window = LossWindow(64, 8.0)
    noise = random.Random(1)
    losses = [10 * math.exp(-step / 200) + noise.gauss(0, 0.05) for step in range(600)]
    for loss in losses:
        assert not window.is_spike(loss)
        window.add(loss)
    assert window.is_spike(losses[-1] + 1.0)
    assert not window.is_spike(losses[-1] - 1.0)
    assert not LossWindow(64, None, losses[-64:]).is_spike(1e9), "without a threshold"
    assert LossWindow(64, 8.0, losses[:44] + [50.0] * 20).is_spike(50.0), "outliers do not hide the next one"
    before = window.losses
    for loss in (math.nan, math.inf, -math.inf):
        assert window.is_spike(loss)
        window.add(loss)
    assert window.losses == before


@given(st.lists(st.floats(-1e6, 1e6), min_size=10, max_size=40), st.integers(0, 40))
def test_a_window_restored_from_json_scores_on_bit_for_bit(losses: list[float], at: int):
    whole, resumed = LossWindow(8, 3.0), LossWindow(8, 3.0)
    for number, loss in enumerate(losses):
        if number == at:
            resumed = LossWindow(8, 3.0, json.loads(json.dumps(resumed.losses)))
        assert resumed.score(loss) == (score := whole.score(loss))
        assert (score is None) == (number < 8)
        resumed.add(loss)
        whole.add(loss)


def test_what_is_left_out_is_read_again_by_the_next_attempt(tmp_path):
    ledger = SkipLedger(RunDirectory(tmp_path))
    assert ledger.entries == ()
    ledger.add(SPIKE)
    # Update 7 now reads the batch behind; a second spike there leaves out batch 8.
    assert SkipLedger(RunDirectory(tmp_path)).data_step(7) == 8
    ledger.add(SkippedStep(at_update=7, data_step=8, loss=9.5, score=None))
    again = SkipLedger(RunDirectory(tmp_path))
    assert [entry.data_step for entry in again.entries] == [7, 8]
    assert [again.data_step(update) for update in (6, 7, 8)] == [6, 9, 10]


@pytest.mark.parametrize(
    ("old", "new"), [('"data_step": 7', '"data_step": 6'), ("{", ""), ('"skipped"', '"x"')]
)
def test_a_damaged_ledger_is_refused_instead_of_reading_other_data(tmp_path, old: str, new: str):
    SkipLedger(RunDirectory(tmp_path)).add(SPIKE)
    path = RunDirectory(tmp_path).skipped
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CorruptArtefactError, match=r"skipped\.json"):
        SkipLedger(RunDirectory(tmp_path))


def test_messages_name_steps_samples_checkpoint_and_command(tmp_path):
    config = make_config(tmp_path, tmp_path, "batch.phases=[{steps: 4, sequence_length: 16}]")
    run = RunDirectory(tmp_path / "runs" / "a")
    # Batch 7 is the fourth of the second phase, of 16 samples each.
    spike = str(loss_spike(run, config, [SPIKE], tmp_path / "step-00000004"))
    for told in ("update 7", "global batch 7, samples 48 to 63 of phase 1", "step-00000004", "cloze resume"):
        assert told in spike
    skipped = str(not_finite(run, config, 3, [1, 2], None))
    for told in ("2 updates", "samples 32 to 47 of phase 0", "optimizer.lr=0.0005"):
        assert told in skipped
