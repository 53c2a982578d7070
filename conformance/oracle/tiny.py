"""The models of tiny cases: drawn at random, written as checkpoints; and the ids that they are run on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from conformance.cases import Case


def tiny_checkpoint(case: Case, folder: Path) -> None:
    """Writes the case's model: every number that it stores drawn, rounded to bfloat16, kept as such."""
    config = AutoConfig.for_model(case.family, **case.config, dtype="bfloat16")
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator("cpu").manual_seed(case.seed)
    with torch.no_grad():
        for name, tensor in _stored(model):
            draw = next(d for pattern, d in case.draws.items() if fnmatch(name, pattern))
            numbers = torch.randn(tensor.shape, generator=generator)
            divisor = 1.0 if draw.inputs is None else math.sqrt(tensor.shape[draw.inputs])
            tensor.copy_(draw.centre + draw.spread / divisor * numbers)
    model.to(torch.bfloat16).save_pretrained(folder, save_original_format=not case.fused)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case.microscaled:
        _microscale(folder, generator)


def _microscale(folder: Path, generator: torch.Generator) -> None:
    """Stores experts as they are released: pairs of 4-bit numbers, a power of two for each 32.

    Whatever bits are drawn are numbers, so that no quantiser has a say in what they mean.
    """
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, n_in, n_out = tensors.pop(name).shape
        rows = (experts, n_out, n_in // 32)
        blocks = torch.randint(256, (*rows, 16), generator=generator)
        exponents = torch.randint(123, 127, rows, generator=generator)  # of 1/16 to 1/2
        tensors |= {f"{name}_blocks": blocks.byte(), f"{name}_scales": exponents.byte()}
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    plain = ["self_attn", "mlp.router", "embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": plain}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _stored(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The model's parameters, each once, and the buffers that its checkpoint holds, by name."""
    yield from model.named_parameters()
    kept = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in kept)


def tiny_ids(case: Case) -> Tensor:
    """The case's prompt: random ids, int64 [prompt_tokens]."""
    generator = torch.Generator("cpu").manual_seed(case.seed)
    return torch.randint(
        case.config["vocab_size"], (case.prompt_tokens,), generator=generator, dtype=torch.int64
    )
