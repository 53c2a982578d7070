"""Tiny llama models drawn at random: as decoders in memory, and as folders with a tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import settings
from safetensors.torch import save_file
from torch import Tensor, nn

from conformance.golden import REPOSITORY_GOLDENS
from engine.backends import backend
from engine.cache import ContiguousCache
from engine.decoder import Decoder
from engine.families import read_spec
from engine.families.family import Rename, Tie
from engine.spec import ModelSpec


def examples(n: int) -> settings:
    """`n` examples where the profile asks for its usual 100, and as many times more as it does."""
    return settings(max_examples=max(1, n * settings().max_examples // 100))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


#: The model of the public cases: 4 query heads on 2 key/value heads, vocabulary 50, context 64.
CASE: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
CASE_IDS = [i * 7 % 50 for i in range(24)]


Draw = Callable[[str, Sequence[int], torch.Generator], Tensor]
Module = TypeVar("Module", bound=nn.Module)


def random_tensor(name: str, shape: Sequence[int], rng: torch.Generator) -> Tensor:
    """Every parameter is drawn, norms and biases too, and large enough to matter."""
    noise = torch.randn(*shape, generator=rng)
    if name.endswith("norm.weight"):
        return 1 + 0.3 * noise
    if name.endswith("bias"):
        return 0.5 * noise
    return noise if "embed" in name else noise * 1.5 * shape[-1] ** -0.5


def case_draw(spread: float) -> Draw:
    """The public cases' way: matrices from N(0, spread), norms left at 1.

    Under seed 0 it gives the weights whose greedy answer is part of case G01.
    """

    def draw(name: str, shape: Sequence[int], rng: torch.Generator) -> Tensor:
        if len(shape) == 1:
            return torch.ones(*shape)
        return torch.empty(*shape).normal_(0, spread, generator=rng)

    return draw


def filled(module: Module, seed: int = 0, draw: Draw = random_tensor) -> Module:
    """The module with all of its parameters drawn, in their order."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in list(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        values = draw(name, parameter.shape, rng)
        setattr(module.get_submodule(owner), leaf, nn.Parameter(values, requires_grad=False))
    return module.eval()


def decoder_of(
    spec: ModelSpec, backend_name: str = "eager", seed: int = 0, draw: Draw = random_tensor
) -> Decoder:
    """A decoder of that shape; the same weights for every backend."""
    made = filled(Decoder(spec, backend(backend_name, spec)), seed, draw)
    if spec.tied_head:
        made.logits.weight = made.embed.weight
    return made


def decoder(
    config: Mapping[str, Any],
    backend_name: str = "eager",
    seed: int = 0,
    draw: Draw = random_tensor,
) -> Decoder:
    """A decoder of the shape of `config`."""
    return decoder_of(read_spec(config)[1], backend_name, seed, draw)


@torch.inference_mode()
def logits(
    model: Decoder,
    ids: Sequence[int],
    steps: Sequence[int] | None = None,
    cache: ContiguousCache | None = None,
) -> Tensor:
    """Logits [T, V] of `ids`, computed in chunks of the sizes `steps`, in one pass if None."""
    cache = cache or ContiguousCache(model.spec, len(ids))
    parts = torch.tensor([list(ids)]).split(list(steps or [len(ids)]), dim=1)
    return torch.cat([model(part, cache)[0] for part in parts])


# -- folders ---------------------------------------------------------------------------------------


def _tensors(config: Mapping[str, Any], seed: int, draw: Draw) -> Iterator[tuple[str, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    family, spec = read_spec(config)
    verbs = family.layout(spec).verbs
    for name, parameter in Decoder(spec, backend("sdpa", spec)).named_parameters():
        if name == "logits.weight" and spec.tied_head:
            continue
        parts = name.split(".")
        i = parts[1] if parts[0] == "layers" else ""
        verb = verbs[name.replace(f"layers.{i}.", "layers.{i}.")]
        assert isinstance(verb, Rename | Tie)
        yield verb.source.replace("{i}", i), draw(name, parameter.shape, rng)


def save_folder(
    folder: Path,
    config: Mapping[str, Any],
    seed: int = 0,
    tensors: Mapping[str, Tensor] = MappingProxyType({}),
    draw: Draw = random_tensor,
) -> Path:
    """config.json and model.safetensors; `tensors` replace those that would be drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    held = {**dict(_tensors(config, seed, draw)), **tensors}
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def text_folder(
    folder: Path, text_golden: str = "text-llama3", seed: int = 0, **changes: Any
) -> Path:
    """A model that speaks: a golden's tokenizer, and random weights for as many tokens as it has."""
    source = REPOSITORY_GOLDENS / text_golden
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    added = [token["id"] for token in tokenizer["added_tokens"]]
    vocab_size = max([*tokenizer["model"]["vocab"].values(), *added]) + 1
    return save_folder(folder, {**CASE, "vocab_size": vocab_size, **changes}, seed)
