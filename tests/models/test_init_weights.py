import pytest
import torch

from models.classifiers import SequenceClassifier
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from models.stacks import Encoder
from tests.models.materials import small_config


def test_weights_are_a_function_of_seed_and_name_and_leave_the_global_generator_alone():
    def weights(seed: int, global_seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(global_seed)
        model = MaskedLanguageModel(small_config())
        before = torch.get_rng_state()
        init_weights(model, seed)
        assert torch.equal(torch.get_rng_state(), before)
        return model.state_dict()

    first, again, other = weights(1, 0), weights(1, 99), weights(2, 0)
    assert all(torch.equal(first[name], again[name]) for name in first)
    changed = {name for name in first if not torch.equal(first[name], other[name])}
    assert changed == {name for name in first if name.endswith("weight") and "norm" not in name}
    layers = [first[f"encoder.transformer.layers.{number}.attention.qkv.weight"] for number in (0, 1)]
    assert not torch.equal(*layers)


def test_shared_names_get_the_same_weights_in_every_network():
    masked, classifier = (
        MaskedLanguageModel(small_config(num_layers=3)),
        SequenceClassifier(small_config(), 2),
    )
    init_weights(masked, seed=4)
    init_weights(classifier, seed=4)
    ours, theirs = masked.state_dict(), classifier.state_dict()
    shared = [name for name in theirs if name.startswith("encoder.")]
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)


def test_network_from_the_meta_device_gets_the_same_weights():
    direct = MaskedLanguageModel(small_config())
    with torch.device("meta"):
        late = MaskedLanguageModel(small_config())
    with pytest.raises(ValueError, match=r"to_empty"):
        init_weights(late, seed=1)
    late.to_empty(device="cpu")
    init_weights(direct, seed=1)
    init_weights(late, seed=1)
    state = late.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in direct.state_dict().items())


def test_distribution_is_that_of_the_config():
    sizes = {"vocab_size": 500, "hidden_size": 128, "intermediate_size": 512}
    config = small_config(**sizes, num_layers=1, initializer_std=0.03)
    model = MaskedLanguageModel(config)
    init_weights(model, seed=0)
    for name, tensor in model.state_dict().items():
        if name.endswith("bias"):
            assert not tensor.any()
        elif "norm" in name:
            assert (tensor == 1).all()
        else:
            assert tensor.std().item() == pytest.approx(0.03, rel=0.03)
            assert tensor.mean().item() == pytest.approx(0.0, abs=6e-4)


def test_initial_weights_are_cut_off_as_in_berts_released_code():
    """Two deviations of 0.02 at most, which leave one of 0.0176."""
    model = Encoder(small_config(vocab_size=5000, initializer_cut=2.0, initializer_std=0.02))
    init_weights(model, seed=1)
    weights = model.embeddings.tokens.weight
    assert weights.abs().max() <= 0.04
    assert weights.std().item() == pytest.approx(0.0176, abs=2e-4)
