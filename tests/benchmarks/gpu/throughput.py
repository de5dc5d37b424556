"""Training steps of published networks in bf16 on one GPU: tokens per second and MFU, beside transformers.

Forward, backward and fused AdamW, weights in bf16. Rows are packed from documents of natural lengths here (the
variable-length kernel never computes what they must not see); transformers reads rows of the same length without
boundaries, which is what it offers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.hf.families import export_model
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from models.transformer import choose_backend, use_backend
from tests.published_networks import PRESETS

MASKED_SHARE = 0.15
PIECES_PER_ROW = 4
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "V100": 125e12}
"""Dense bf16 FLOP/s (fp16 on V100) from the makers' data sheets, by a part of the device's name."""


@dataclass(frozen=True, slots=True)
class Case:
    """A network at a batch."""

    preset: str
    length: int
    samples: int

    @property
    def config(self) -> TransformerConfig:
        """The network, without dropout of attention weights, which the variable-length kernel has not."""
        return replace(PRESETS[self.preset], attention_dropout=0.0)


CASES = (Case("bert-base", 512, 64), Case("bert-large", 512, 32), Case("gpt3-350m", 2048, 8))


def measure(case: Case, device: torch.device, *, rounds: int = 20) -> Iterator[str]:
    """Tokens per second, share of the device's peak and memory of ours, ours compiled, and transformers, in turn."""
    ours, compiled = _ours(case, device), _ours(case, device)
    compiled.compile()
    theirs = _theirs(case, device)
    packed, plain = _packed(case, device), _plain(case, device)
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
    tokens = case.length * case.samples
    peak_flops = _peak_flops(device)
    for name, spent in seconds.items():
        speed = tokens / statistics.median(spent)
        mfu = f"{speed * flops_per_token(case) / peak_flops:.1%}" if peak_flops else "unknown"
        yield f"{case.preset}, {name}: {speed:,.0f} tokens/s, MFU {mfu}, {memory[name] / 1e9:.1f} GB"


def flops_per_token(case: Case) -> float:
    """Training FLOPs per token that the mathematics needs, 6 N + 12 layers x hidden x length (Chowdhery et al. 2022,
    appendix B), N without embeddings; behind the last attention, weights count where something is predicted."""
    config = case.config
    behind = config.hidden_size * (config.attention_size + 2 * config.intermediate_size)
    block = 3 * config.hidden_size * config.attention_size + behind
    unread = 1 - MASKED_SHARE if config.network == "encoder" else 0.0
    projection = (1 - unread) * config.hidden_size * config.require_vocab_size()
    attention = 12 * config.num_layers * config.attention_size * case.length / PIECES_PER_ROW
    return 6 * (config.num_layers * block - unread * behind + projection) + attention


def largest_kernel_difference(device: torch.device) -> float:
    """Largest difference of hidden states between the variable-length kernel and SDPA, relative to their scale, on
    packed pieces of a small encoder and a small decoder in bf16."""
    worst = 0.0
    for preset in ("roberta-base", "gpt2", "modernbert-base"):
        config = replace(
            PRESETS[preset], num_layers=3, hidden_size=256, num_heads=4, vocab_size=500, attention_dropout=0.0
        )
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


def _ours(case: Case, device: torch.device) -> nn.Module:
    config = case.config
    network = CausalLanguageModel(config) if config.network == "decoder" else MaskedLanguageModel(config)
    init_weights(network, 1)
    choice = choose_backend(config, "auto", device=device, dtype=torch.bfloat16)
    use_backend(network, choice)
    return network.to(device, torch.bfloat16).train()


def _theirs(case: Case, device: torch.device) -> nn.Module:
    import transformers

    config = case.config
    exported = export_model(_ours(case, torch.device("cpu")).float().state_dict(), config)
    values = dict(exported.config)
    kind = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    auto = (
        transformers.AutoModelForCausalLM
        if config.network == "decoder"
        else transformers.AutoModelForMaskedLM
    )
    model = auto.from_config(kind, attn_implementation="sdpa", dtype=torch.bfloat16)
    return model.to(device).train()


def _packed(case: Case, device: torch.device) -> dict[str, Tensor]:
    ids = _ids(case, device)
    tokens = ids.numel()
    step = case.length // PIECES_PER_ROW
    boundaries = torch.arange(0, tokens + 1, step, dtype=torch.int32, device=device)
    flat = ids.flatten()
    if case.config.network == "decoder":
        positions = torch.arange(tokens, device=device)
        positions = positions[positions % step != step - 1]
        targets = flat[positions + 1]
    else:
        positions = torch.arange(0, tokens, round(1 / MASKED_SHARE), device=device)
        targets = flat[positions]
    return {"input_ids": ids, "cu_seqlens": boundaries, "predicted_positions": positions, "targets": targets}


def _plain(case: Case, device: torch.device) -> dict[str, Tensor]:
    ids = _ids(case, device)
    if case.config.network == "decoder":
        return {"input_ids": ids, "labels": ids}
    labels = torch.full_like(ids, -100).flatten()
    positions = torch.arange(0, ids.numel(), round(1 / MASKED_SHARE), device=device)
    labels[positions] = ids.flatten()[positions]
    return {"input_ids": ids, "labels": labels.view_as(ids)}


def _ids(case: Case, device: torch.device) -> Tensor:
    count = case.samples * case.length
    vocabulary = case.config.require_vocab_size()
    return (torch.arange(count, device=device) * 7919 % (vocabulary - 5) + 5).view(case.samples, case.length)


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    losses, _ = model(**batch)
    return sum(losses.values()) / len(batch["targets"])  # pyright: ignore[reportReturnType]


def _step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _timed(step: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Seconds of a step, and its peak memory in bytes."""
    if device.type != "cuda":
        started = time.perf_counter()
        step()
        return time.perf_counter() - started, 0.0
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    step()
    torch.cuda.synchronize(device)
    return time.perf_counter() - started, float(torch.cuda.max_memory_allocated(device))


def _peak_flops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
