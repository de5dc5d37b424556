"""Training steps of published networks in bf16 on one GPU: tokens per second and MFU, beside transformers.

Forward, backward and fused AdamW, weights in bf16. Rows are packed from several documents here (the variable-length
kernel never computes what they must not see); transformers reads the same rows without boundaries, which is what it
offers.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from models.hf.families import export_model
from models.hf.heads import carrier_of
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from pipeline.engine.gpus import peak_flops
from pipeline.plan.flops import count_flops, without_storage
from pipeline.run.config import PretrainConfig
from tests.benchmarks import plan_memory
from tests.published_networks import PRESETS


@dataclass(frozen=True, slots=True)
class Case:
    """A network at a batch."""

    preset: str
    length: int
    samples: int

    def config(self) -> PretrainConfig:
        """The network, without dropout of attention weights, which the variable-length kernel has not."""
        shape = replace(PRESETS[self.preset], attention_dropout=0.0)
        settings = (
            "precision=bf16",
            f"objective.kind={'clm' if shape.network == 'decoder' else 'mlm'}",
            f"model.network={shape.network}",
            f"model.max_positions={self.length}",
            f"batch.sequence_length={self.length}",
            f"batch.samples={self.samples}",
            f"batch.micro_batch_size={self.samples}",
        )
        return plan_memory.Case(self.preset, settings).config().model_copy(update={"model": shape})


CASES = (Case("bert-base", 512, 64), Case("bert-large", 512, 32), Case("gpt3-350m", 2048, 8))


def measure(case: Case, device: torch.device, *, rounds: int = 20) -> Iterator[str]:
    """Tokens per second, share of the device's peak and memory of ours, ours compiled, and transformers, in turn."""
    model, batch = plan_memory.network_and_batch(case)
    theirs = _theirs(model).to(device).train()
    ours = model.to(device, torch.bfloat16).train()
    compiled = copy.deepcopy(ours)
    compiled.compile()
    packed = {name: tensor.to(device) for name, tensor in batch.items()}
    plain = _plain(packed, case.config())
    steps = {
        "cloze": _step(ours, lambda: _loss(ours, packed)),
        "cloze, compiled": _step(compiled, lambda: _loss(compiled, packed)),
        "transformers, SDPA": _step(theirs, lambda: theirs(**plain).loss),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    memory = dict.fromkeys(steps, 0.0)
    for number in range(rounds + 3):
        for name, step in steps.items():
            spent, peak = _timed(step, device)
            if number >= 3:  # the first rounds compile and choose kernels
                seconds[name].append(spent)
                memory[name] = max(memory[name], peak)
    network = without_storage(lambda: case.config().objective.build_model(case.config().model, {}))
    flops = count_flops(network, {name: tensor.numpy() for name, tensor in batch.items()}).total
    peak = peak_flops(torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "bf16")
    for name, spent in seconds.items():
        step_s = statistics.median(spent)
        mfu = f"{flops / step_s / peak:.1%}" if peak else "unknown"
        speed = f"{case.length * case.samples / step_s:,.0f} tokens/s"
        yield f"{case.preset}, {name}: {speed}, MFU {mfu}, {memory[name] / 1e9:.1f} GB"


def _theirs(model: Any) -> Any:
    import transformers

    exported = export_model(model.state_dict(), model.config)
    auto = getattr(transformers, carrier_of(model.config, exported.head).auto_class)
    kind = getattr(transformers, exported.config["architectures"][0]).config_class.from_dict(exported.config)
    return auto.from_config(kind, attn_implementation="sdpa", dtype=torch.bfloat16)


def _plain(packed: dict[str, Tensor], config: PretrainConfig) -> dict[str, Tensor]:
    ids = packed["input_ids"]
    labels = ids
    if config.objective.kind == "mlm":
        labels = torch.full_like(ids, -100)
        labels.view(-1)[packed["predicted_positions"]] = packed["targets"]
    return {"input_ids": ids, "labels": labels}


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    losses, _ = model(**batch)
    return torch.stack(list(losses.values())).sum() / len(batch["targets"])


def _step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _timed(step: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Seconds of a step, and its peak memory in bytes."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    step()
    if on_cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - started, float(torch.cuda.max_memory_allocated(device)) if on_cuda else 0.0


def largest_kernel_difference(device: torch.device) -> float:
    """Largest difference of hidden states between the variable-length kernel and SDPA, relative to their scale, on
    packed pieces of small networks in bf16."""
    worst = 0.0
    sizes: dict[str, Any] = {"num_layers": 3, "hidden_size": 256, "num_heads": 4, "vocab_size": 500}
    for preset in ("roberta-base", "gpt2", "modernbert-base"):
        config = replace(PRESETS[preset], **sizes, attention_dropout=0.0)
        network = CausalLanguageModel(config) if config.network == "decoder" else MaskedLanguageModel(config)
        init_weights(network, 1)
        network = network.to(device, torch.bfloat16).eval()
        stack: Any = network.decoder if isinstance(network, CausalLanguageModel) else network.encoder
        ids = torch.arange(1024, device=device).view(2, 512) % 500
        pieces = torch.tensor([0, 100, 101, 512, 700, 1024], dtype=torch.int32, device=device)
        outputs = []
        for varlen in (False, True):
            stack.transformer.varlen = varlen
            outputs.append(stack(ids, cu_seqlens=pieces).float())
        worst = max(worst, float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()))
    return worst
